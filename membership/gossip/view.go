package gossip

import (
	"cmp"
	"context"
	"net"
	"slices"
	"sync"
	"time"
)

// View is one member's view of the pool.
type View struct {
	From string    `json:"from"`
	At   time.Time `json:"at"` // by the clock of From
	// Slowness is memberlist's awareness that From itself is slow: 0 is healthy, 8 is the worst.
	Slowness int    `json:"slowness"`
	Members  []Seen `json:"members"`
}

// Seen is one member as another one sees it.
type Seen struct {
	Name    string    `json:"name"`
	Role    string    `json:"role"`
	Address string    `json:"address"` // of gossip, IP:PORT
	State   State     `json:"state"`
	Since   time.Time `json:"since"`
	Faults  []string  `json:"ills,omitempty"`
	// KeyGeneration is that of the member's gossip keys.
	KeyGeneration uint64 `json:"keyGeneration,omitempty"`
	// Heard is the time of the member's last direct answer to From, and RTT its round trip in
	// seconds. A large pool probes each member rarely, so an old time means nothing there.
	Heard *time.Time `json:"heard,omitempty"`
	RTT   float64    `json:"rttSeconds,omitempty"`
	// Silent is set on a server that was asked for this view, twice, and did not answer From
	// directly. Gossip may take it for alive all the same, because others reach it.
	Silent bool `json:"silent,omitempty"`
}

// answered is the last direct answer of a member.
type answered struct {
	at  time.Time
	rtt time.Duration
}

// pingTries is how many lost packets make a server silent.
const pingTries = 2

// View probes the servers of the pool, all at once, and returns this member's view. It takes two of
// memberlist's probe timeouts at most, one second by default.
func (p *Pool) View(ctx context.Context) View {
	members := p.Members()
	silent := make([]bool, len(members))
	var pings sync.WaitGroup
	for i, m := range members {
		if m.Role == "server" && m.State != Left && m.Name != p.config.Name {
			pings.Go(func() { silent[i] = !p.ping(ctx, m) })
		}
	}
	pings.Wait()
	v := View{From: p.config.Name, At: p.config.Now(), Slowness: p.list.GetHealthScore()}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, m := range members {
		seen := Seen{Name: m.Name, Role: m.Role, Address: m.Addr.String(), State: m.State, Since: m.Since,
			Faults: m.Facts.Health.Faults(), KeyGeneration: m.Facts.KeyGeneration, Silent: silent[i]}
		if last, ok := p.heard[m.Name]; ok {
			seen.Heard, seen.RTT = &last.at, last.rtt.Seconds()
		}
		v.Members = append(v.Members, seen)
	}
	return v
}

// ping reports whether the member answers directly.
func (p *Pool) ping(ctx context.Context, m Member) bool {
	for range pingTries {
		if ctx.Err() != nil {
			return false
		}
		if rtt, err := p.list.Ping(m.Name, net.UDPAddrFromAddrPort(m.Addr)); err == nil {
			p.hear(m.Name, rtt)
			return true
		}
	}
	return false
}

func (p *Pool) hear(name string, rtt time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.members[name]; known { // otherwise it was forgotten meanwhile
		p.heard[name] = answered{p.config.Now(), rtt}
	}
}

// Disagreement is a member on which views differ: the network is partly cut, or a change is still
// spreading.
type Disagreement struct {
	About string   `json:"about"`
	Sees  []string `json:"sees"`  // members that take it for alive and get its answers
	Lacks []string `json:"lacks"` // members that take it for dead, get no answer, or do not know it
}

// Disagreements compares views. A member's view of itself does not count, nor do views of a member
// whose good-bye some member has received.
func Disagreements(views []View) []Disagreement {
	left, about := map[string]bool{}, map[string]bool{}
	for _, v := range views {
		for _, m := range v.Members {
			about[m.Name] = true
			left[m.Name] = left[m.Name] || m.State == Left
		}
	}
	var out []Disagreement
	for name := range about {
		if left[name] {
			continue
		}
		d := Disagreement{About: name}
		for _, v := range views {
			i := slices.IndexFunc(v.Members, func(m Seen) bool { return m.Name == name })
			switch {
			case v.From == name:
			case i >= 0 && v.Members[i].State == Alive && !v.Members[i].Silent:
				d.Sees = append(d.Sees, v.From)
			default:
				d.Lacks = append(d.Lacks, v.From)
			}
		}
		if len(d.Sees) > 0 && len(d.Lacks) > 0 {
			slices.Sort(d.Sees)
			slices.Sort(d.Lacks)
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b Disagreement) int { return cmp.Compare(a.About, b.About) })
	return out
}

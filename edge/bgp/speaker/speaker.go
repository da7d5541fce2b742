package speaker

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// Peer is a router, and how sessions with it are made.
type Peer struct {
	Name        string // of the BGPPeer
	Address     netip.AddrPort
	AS, LocalAS uint32
	Password    string // none: ""
	// HoldTime is at least three seconds. RestartTime is how long the peer keeps the routes of a
	// session that has broken; 0: not at all.
	HoldTime, RestartTime time.Duration
	// TTL of packets; 0 is one for another AS, and the kernel's for the same.
	TTL    int
	Source netip.Addr // zero: the kernel chooses
}

// Attributes go with a route.
type Attributes struct {
	Communities      []uint32
	LargeCommunities [][3]uint32
	LocalPreference  uint32 // for peers of the same AS
}

func (a Attributes) equal(b Attributes) bool {
	return a.LocalPreference == b.LocalPreference && slices.Equal(a.Communities, b.Communities) &&
		slices.Equal(a.LargeCommunities, b.LargeCommunities)
}

// State is that of a session.
type State string

// The states of RFC 4271, without Active: the speaker does not listen.
const (
	Idle        State = "Idle"
	Connect     State = "Connect"
	OpenSent    State = "OpenSent"
	OpenConfirm State = "OpenConfirm"
	Established State = "Established"
)

// Session is the state of a session.
type Session struct {
	Peer    string
	Address netip.Addr
	State   State
	// Since is when the session was established, or when it was lost: attempts do not change it.
	Since time.Time
	// Routes are announced. Restart is set if the peer keeps them while this process is away.
	Routes  int
	Restart bool
	// Problem is why there is no session.
	Problem string
}

// Config of a Speaker. ID and Changed are needed.
type Config struct {
	// ID is the BGP identifier of this node: an IPv4 address, or any number of this form that no
	// other speaker has.
	ID netip.Addr
	// Changed is called when a session has changed. It must not block.
	Changed func(Session)
	Logger  *slog.Logger
	dial    func(context.Context, *Peer) (net.Conn, error)
}

// Speaker keeps sessions with peers. Make it with New, and end it with Stop.
type Speaker struct {
	config  Config
	running sync.WaitGroup

	mu      sync.Mutex
	links   map[string]*link // by the name of the peer
	routes  map[netip.Prefix]Attributes
	changed chan struct{} // closed when routes change
}

// New returns a Speaker without peers.
func New(c Config) *Speaker {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.dial == nil {
		c.dial = dial
	}
	return &Speaker{config: c, links: map[string]*link{}, changed: make(chan struct{})}
}

// link is a peer, with its present session or attempt.
type link struct {
	speaker *Speaker
	peer    Peer
	end     context.CancelCauseFunc
	ended   chan struct{}

	state Session // by the speaker's mu
}

// SetRoutes replaces the routes.
func (s *Speaker) SetRoutes(routes map[netip.Prefix]Attributes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	same := len(routes) == len(s.routes)
	for p, of := range routes {
		had, ok := s.routes[p]
		same = same && ok && had.equal(of)
	}
	if same {
		return
	}
	s.routes = routes
	close(s.changed)
	s.changed = make(chan struct{})
}

// SetPeers replaces the peers. A peer that is gone drops the routes. One that has changed keeps
// them, and gets a new session.
func (s *Speaker) SetPeers(peers []Peer) {
	wanted := map[string]Peer{}
	for _, p := range peers {
		wanted[p.Name] = p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, l := range s.links {
		now, ok := wanted[name]
		switch {
		case ok && now == l.peer:
			delete(wanted, name)
			continue
		case ok && now.Address == l.peer.Address:
			l.end(ErrAway)
		default:
			l.end(ErrLeaving)
		}
		delete(s.links, name)
		if ok {
			s.start(now, l.ended)
			delete(wanted, name)
		}
	}
	for _, p := range wanted {
		s.start(p, nil)
	}
}

// start starts a link after the former one of the peer has ended. The caller has the lock.
func (s *Speaker) start(p Peer, after <-chan struct{}) {
	ctx, end := context.WithCancelCause(context.Background())
	l := &link{speaker: s, peer: p, end: end, ended: make(chan struct{}),
		state: Session{Peer: p.Name, Address: p.Address.Addr(), State: Idle, Since: time.Now()}}
	s.links[p.Name] = l
	s.running.Go(func() { // ends with ctx
		defer close(l.ended)
		if after != nil {
			<-after
		}
		l.keep(ctx)
	})
}

// Stop ends all sessions, with ErrAway or ErrLeaving, and waits for their end.
func (s *Speaker) Stop(why error) {
	s.mu.Lock()
	for name, l := range s.links {
		l.end(why)
		delete(s.links, name)
	}
	s.mu.Unlock()
	s.running.Wait()
}

// Sessions returns all sessions, in the order of their peers.
func (s *Speaker) Sessions() []Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Session
	for _, l := range s.links {
		out = append(out, l.state)
	}
	slices.SortFunc(out, func(a, b Session) int { return strings.Compare(a.Peer, b.Peer) })
	return out
}

// watch returns a channel that is closed when the routes change.
func (s *Speaker) watch() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// routesOf returns the routes of an address's family.
func (s *Speaker) routesOf(own netip.Addr) map[netip.Prefix]Attributes {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[netip.Prefix]Attributes{}
	for p, of := range s.routes {
		if p.Addr().Is4() == own.Is4() {
			out[p] = of
		}
	}
	return out
}

const (
	// firstPause lies between an attempt and the next; each is twice as long, up to lastPause.
	firstPause, lastPause = time.Second, 15 * time.Second
)

// keep makes sessions until ctx ends.
func (l *link) keep(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		err := l.run(ctx)
		if ctx.Err() != nil {
			return
		}
		if l.lost(err) {
			pause = firstPause
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		pause = min(2*pause, lastPause)
	}
}

// set changes the state, and says so if it is another one.
func (l *link) set(change func(*Session)) (before Session) {
	l.speaker.mu.Lock()
	before = l.state
	change(&l.state)
	now := l.state
	l.speaker.mu.Unlock()
	if now != before {
		l.speaker.config.Changed(now)
	}
	return before
}

// tell notes a state before Established.
func (l *link) tell(state State) { l.set(func(s *Session) { s.State = state }) }

func (l *link) established(restart bool) {
	l.speaker.config.Logger.Info("a BGP session is established", "peer", l.peer.Name, "address", l.peer.Address)
	l.set(func(s *Session) {
		s.State, s.Since, s.Restart, s.Problem = Established, time.Now(), restart, ""
	})
}

func (l *link) announced(routes int) { l.set(func(s *Session) { s.Routes = routes }) }

// lost notes why there is no session, and reports whether there was one.
func (l *link) lost(err error) bool {
	before := l.set(func(s *Session) {
		if s.State == Established {
			s.Since = time.Now()
		}
		s.State, s.Routes, s.Restart, s.Problem = Idle, 0, false, err.Error()
	})
	if had := before.State == Established; had || before.Problem != err.Error() {
		l.speaker.config.Logger.Warn("there is no BGP session; trying again", "peer", l.peer.Name,
			"address", l.peer.Address, "err", err)
		return had
	}
	return false
}

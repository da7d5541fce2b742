package enroll

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

const (
	// ServerAwayAfter is the absence after which an agent forgets a server. An agent does not learn
	// of servers' removal from the store. A server that comes back reappears in gossip.
	ServerAwayAfter = 7 * 24 * time.Hour
	// lookCounts is the most time that counts between two looks. Nobody watched while the machine
	// slept or the process stood still.
	lookCounts = 3 * forgetEvery
)

// Absences measures how long an agent has missed each server. It counts the time in which it saw
// another server alive but not this one, since it last saw this one. Unwatched time, as while the
// agent was off, and steps of the clock do not count. The record keeps full hours, so that it is
// written rarely; a restart loses the current hour.
//
// It is for one goroutine.
type Absences struct {
	record *Record
	looked time.Time // last; zero: not yet
	missed map[string]time.Duration
}

// NewAbsences begins with the values in the record.
func NewAbsences(r *Record) *Absences {
	a := &Absences{record: r, missed: map[string]time.Duration{}}
	for name, hours := range r.missed() {
		a.missed[name] = time.Duration(hours) * time.Hour
	}
	return a
}

// Look takes the known servers with whether each is seen alive now, and returns those that were
// missed for too long. An error means that the record was not written; the next look retries.
func (a *Absences) Look(seen map[string]bool, now time.Time) (gone []string, err error) {
	var passed time.Duration
	if !a.looked.IsZero() {
		passed = min(max(0, now.Sub(a.looked)), lookCounts)
	}
	a.looked = now
	cutOff := true // it is the agent that is, as far as it can see
	for _, alive := range seen {
		cutOff = cutOff && !alive
	}
	if cutOff {
		return nil, nil
	}
	missed, hours := map[string]time.Duration{}, map[string]int{}
	for name, alive := range seen {
		if alive {
			continue
		}
		missed[name] = a.missed[name] + passed
		if full := int(missed[name] / time.Hour); full > 0 {
			hours[name] = full
		}
		if missed[name] >= ServerAwayAfter {
			gone = append(gone, name)
		}
	}
	a.missed = missed
	slices.Sort(gone)
	if err := a.record.miss(hours); err != nil {
		return gone, fmt.Errorf("%s: %w", a.record.Path(), err)
	}
	return gone, nil
}

// SeenServers returns whether each known server is alive. It is alive by gossip, or by a living API
// server at its address, because gossip may not get through.
func SeenServers(members []gossip.Member, known []join.Server, living []netip.AddrPort) map[string]bool {
	seen := map[string]bool{}
	addresses := map[netip.AddrPort][]string{}
	for _, k := range known {
		seen[k.Name] = false
		addresses[k.API] = append(addresses[k.API], k.Name)
	}
	taken := map[netip.AddrPort]bool{} // by a server that gossip sees there: the answer is that one's
	for _, m := range members {
		if m.Role != pki.RoleServer {
			continue
		}
		api := netip.AddrPortFrom(m.Addr.Addr(), m.Facts.APIPort)
		addresses[api] = append(addresses[api], m.Name)
		if seen[m.Name] = m.State == gossip.Alive; seen[m.Name] {
			taken[api] = true
		}
	}
	for _, api := range living {
		if taken[api] {
			continue
		}
		for _, name := range addresses[api] {
			seen[name] = true
		}
	}
	return seen
}

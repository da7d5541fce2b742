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
	// ServerAwayAfter is for how long an agent must have missed a server to forget it. An agent is
	// not told who was removed from the store; one that comes back gossip shows it again.
	ServerAwayAfter = 7 * 24 * time.Hour
	// lookCounts is how much of the time since the last look counts, at most: for how long the
	// machine slept, or the process stood still, nobody watched.
	lookCounts = 3 * forgetEvery
)

// Absences is for how long an agent has missed each server: time in which it saw another server
// alive, and that one not, since it saw that one last. Time that nobody watched, as while the agent
// was off, counts for nothing, nor do steps of the clock. The record keeps full hours, so that it
// is written rarely; the begun hour is lost at a restart.
//
// It is of one goroutine.
type Absences struct {
	record *Record
	looked time.Time // last; zero: not yet
	missed map[string]time.Duration
}

// NewAbsences begins with what the record has.
func NewAbsences(r *Record) *Absences {
	a := &Absences{record: r, missed: map[string]time.Duration{}}
	for name, hours := range r.missed() {
		a.missed[name] = time.Duration(hours) * time.Hour
	}
	return a
}

// Look takes which servers are seen alive now, of those that are known, and returns the names of
// those that were missed for long. An error tells that the record could not be written; that is
// tried again at the next look.
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

// SeenServers tells of each server that gossip shows, or that is known from before, whether it is
// alive: by gossip, or because it is one of the API servers that live, which may be so where gossip
// does not get through.
func SeenServers(members []gossip.Member, known []join.Server, living []netip.AddrPort) map[string]bool {
	seen := map[string]bool{}
	addresses := map[netip.AddrPort][]string{}
	for _, k := range known {
		seen[k.Name] = false
		addresses[k.API] = append(addresses[k.API], k.Name)
	}
	taken := map[netip.AddrPort]bool{} // by a server that gossip sees there: what answers is that one
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

package hold

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Demand is one address that a node is to answer for.
type Demand struct {
	Addr netip.Addr
	// Eligible are the nodes that may get it, and Possible those that may hold it by a grant of an
	// earlier leader. The second may have more nodes: one that is no longer eligible may hold it
	// yet.
	Eligible, Possible []string
}

// ledger is a leader's knowledge of one term. The caller serializes calls, and passes the time.
//
//	unknown ──all possible holders reported or are gone, or time──▶ free ──grant──▶ held
//	   └───────────a node reports it───────────▶ held ──given back, gone, or time──▶ free
type ledger struct {
	began   Instant // before the term's first proof
	demands map[netip.Addr]Demand
	// partial is set while not all demands are known. An address without a demand then stays where
	// it is.
	partial  bool
	grants   map[netip.Addr]grant
	reported map[string]bool         // nodes whose earlier grants are all known
	session  map[string]uint64       // the newest session with a request, by node
	sessions map[uint64]*openSession // open sessions
}

// wakePatience is how long a node may take to answer a wake before another node is chosen.
const wakePatience = 300 * time.Millisecond

// grant is a node's right to answer.
type grant struct {
	node string
	made Instant // when it was last granted or reported
	end  Instant // from then on another node may get it
	// claimed is set while only the node itself says that it has the grant. By no demand of this
	// term it has been granted.
	claimed bool
}

// openSession is a session without an end yet, as the ledger sees it.
type openSession struct {
	node string
	// woken is when the node was asked for a request; zero when it has answered since.
	woken Instant
}

func newLedger(began Instant) *ledger {
	return &ledger{
		began: began, demands: map[netip.Addr]Demand{}, grants: map[netip.Addr]grant{},
		reported: map[string]bool{}, session: map[string]uint64{}, sessions: map[uint64]*openSession{},
	}
}

// demand replaces the demands.
func (l *ledger) demand(all []Demand, partial bool) {
	l.partial = partial
	l.demands = make(map[netip.Addr]Demand, len(all))
	for _, d := range all {
		l.demands[d.Addr] = d
	}
}

// open notes a session that has begun.
func (l *ledger) open(session uint64, node string) { l.sessions[session] = &openSession{node: node} }

// close notes its end. It says nothing about the node's addresses.
func (l *ledger) close(session uint64) { delete(l.sessions, session) }

// hear takes the list of a request. now is when the request had arrived. unfounded are addresses
// that the node cannot hold by any grant. ok is false if the request is of an earlier session than
// another one of this node: the node has ended that session.
//
// At the beginning of a term a node may hold what an earlier leader has granted, and nobody else
// can confirm it. Such an address counts as taken for as long as an earlier grant can last, whoever
// the node is. But a node that cannot have been granted it keeps it from no other one that can: of
// two honest nodes only one holds it.
func (l *ledger) hear(now Instant, session uint64, held []netip.Addr) (unfounded []netip.Addr, ok bool) {
	v := l.sessions[session]
	if v == nil || session < l.session[v.node] {
		return nil, false
	}
	v.woken = 0
	l.session[v.node] = session
	for addr, g := range l.grants {
		if g.node == v.node && !slices.Contains(held, addr) {
			delete(l.grants, addr)
		}
	}
	for _, addr := range held {
		g, known := l.grants[addr]
		early, founded := now <= l.earlierEnd(), l.founded(addr, v.node)
		switch {
		case known && g.node == v.node:
		case early && (!known || g.claimed && founded && !l.founded(addr, g.node)):
			l.grants[addr] = grant{node: v.node, made: now, end: l.earlierEnd(), claimed: true}
			if !founded {
				unfounded = append(unfounded, addr)
			}
		default: // no leader can have granted it
			unfounded = append(unfounded, addr)
		}
	}
	l.reported[v.node] = true
	return unfounded, true
}

// earlierEnd is when the grants of all earlier terms are over.
func (l *ledger) earlierEnd() Instant { return l.began.Add(Duration + Margin) }

// founded reports whether a node may hold an address by a grant of an earlier leader. It may hold
// one whose demand is not known, or has ended.
func (l *ledger) founded(addr netip.Addr, node string) bool {
	d, demanded := l.demands[addr]
	return !demanded || slices.Contains(d.Possible, node)
}

// grant grants a node what it is to hold. now is an instant after the request arrived, and before
// the proof of leadership. It returns the addresses, in order, and those that are new at this node.
func (l *ledger) grant(now Instant, session uint64) (granted, fresh []netip.Addr) {
	v := l.sessions[session]
	if v == nil || session < l.session[v.node] {
		return nil, nil
	}
	for _, addr := range l.addresses() {
		if l.wanted(now, addr) != v.node || !l.free(now, addr, v.node) {
			continue
		}
		g, known := l.grants[addr]
		if !known || g.node != v.node {
			fresh = append(fresh, addr)
		}
		_, demanded := l.demands[addr]
		l.grants[addr] = grant{
			node: v.node, made: now, end: max(g.end, now.Add(Duration+Margin)),
			claimed: g.claimed && g.node == v.node && !demanded,
		}
		granted = append(granted, addr)
	}
	return granted, fresh
}

// addresses returns all that have a demand or a grant, in order.
func (l *ledger) addresses() []netip.Addr {
	all := slices.Collect(maps.Keys(l.demands))
	for addr := range l.grants {
		if _, demanded := l.demands[addr]; !demanded {
			all = append(all, addr)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// free reports whether a node may get the address: nobody else may answer for it.
func (l *ledger) free(now Instant, addr netip.Addr, node string) bool {
	if g, known := l.grants[addr]; known {
		return g.node == node || now > g.end
	}
	return now > l.earlierEnd() || !slices.ContainsFunc(l.demands[addr].Possible, func(n string) bool {
		return !l.reported[n]
	})
}

// wanted returns the node that is to have an address; "" for none. The present holder stays while
// it is eligible, so that nothing moves without need.
func (l *ledger) wanted(now Instant, addr netip.Addr) string {
	d, demanded := l.demands[addr]
	g, known := l.grants[addr]
	switch {
	case known && now <= g.end && (slices.Contains(d.Eligible, g.node) || !demanded && l.partial):
		return g.node
	case !demanded:
		return ""
	}
	var candidates []string
	for _, v := range l.sessions {
		// A node that let its hold run out, or was woken and sends nothing, may be a machine that
		// has died in silence.
		silent := known && g.node == v.node || v.woken != 0 && now.Sub(v.woken) >= wakePatience
		if slices.Contains(d.Eligible, v.node) && !silent {
			candidates = append(candidates, v.node)
		}
	}
	return choose(addr, candidates)
}

// due reports whether a node would be granted an address now.
func (l *ledger) due(now Instant, node string) bool {
	return slices.ContainsFunc(l.addresses(), func(addr netip.Addr) bool {
		return l.wanted(now, addr) == node && l.free(now, addr, node)
	})
}

// gone takes the proof that no process of a node ran at an instant after asked. Grants that are
// older have nobody left to use them.
func (l *ledger) gone(node string, asked Instant) {
	for addr, g := range l.grants {
		if g.node == node && g.made < asked {
			delete(l.grants, addr)
		}
	}
	l.reported[node] = true
}

// calls are the leader's tasks.
type calls struct {
	wake    []uint64 // sessions to ask for a request now
	probe   []string // nodes that may be gone, for which somebody waits
	pending bool     // an address is not where it is to be
}

// next returns the tasks of an instant.
func (l *ledger) next(now Instant) (c calls) {
	connected := map[string]uint64{}
	for id, v := range l.sessions {
		connected[v.node] = max(connected[v.node], id)
	}
	wake, probe := map[string]bool{}, map[string]bool{}
	for addr, d := range l.demands {
		g, known := l.grants[addr]
		known = known && now <= g.end
		want := l.wanted(now, addr)
		switch {
		case known && g.node == want:
			if _, here := connected[g.node]; !here {
				c.pending = true
				probe[g.node] = true
			}
			continue
		case known:
			wake[g.node] = true // to give it back
			if _, here := connected[g.node]; !here {
				probe[g.node] = true
			}
		case want != "" && l.free(now, addr, want):
			wake[want] = true
		case want != "":
			for _, n := range d.Possible {
				if _, here := connected[n]; !here && !l.reported[n] {
					probe[n] = true
				}
			}
		}
		c.pending = c.pending || want != "" || known
	}
	for addr, g := range l.grants {
		if _, demanded := l.demands[addr]; !demanded {
			if now > g.end {
				delete(l.grants, addr)
				continue
			}
			if l.partial {
				continue
			}
			wake[g.node] = true
			c.pending = true
		}
	}
	for node := range wake {
		if id, here := connected[node]; here && l.sessions[id].woken == 0 {
			c.wake = append(c.wake, id)
		}
	}
	slices.Sort(c.wake)
	c.probe = slices.Sorted(maps.Keys(probe))
	return c
}

// woke notes that a session was woken.
func (l *ledger) woke(now Instant, session uint64) {
	if v := l.sessions[session]; v != nil && v.woken == 0 {
		v.woken = now
	}
}

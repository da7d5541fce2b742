package hold

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
)

// Hold is one address that a node holds.
type Hold struct {
	Addr netip.Addr
	// Since is when this node took it over. An address that ran out, and was granted again, was
	// taken over again: another node may have had it.
	Since Instant
	end   Instant
}

// Holder has the addresses that one node holds. Holds may be called by any goroutine.
type Holder struct {
	clock func() Instant
	held  atomic.Pointer[map[netip.Addr]Hold] // never changed in place

	mu      sync.Mutex // of writers
	changed chan struct{}
}

// NewHolder returns a Holder that holds nothing. clock is Boot, unless in tests.
func NewHolder(clock func() Instant) *Holder {
	h := &Holder{clock: clock, changed: make(chan struct{})}
	h.held.Store(&map[netip.Addr]Hold{})
	return h
}

// Holds reports whether this node may answer for an address now. It is asked before each answer,
// because no timer is certain: a process may wake up late.
func (h *Holder) Holds(addr netip.Addr) bool {
	held, ok := (*h.held.Load())[addr]
	return ok && h.clock() < held.end
}

// Held returns all that this node holds now, by address. The channel is closed when an address is
// taken over or dropped. It does not tell that one has run out.
func (h *Holder) Held() ([]Hold, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []Hold
	now := h.clock()
	for _, held := range *h.held.Load() {
		if now < held.end {
			out = append(out, held)
		}
	}
	slices.SortFunc(out, func(a, b Hold) int { return a.Addr.Compare(b.Addr) })
	return out, h.changed
}

// Drop gives up all addresses at once.
func (h *Holder) Drop() { h.take(nil, 0) }

// take replaces the held addresses: each granted address ends at end, and all others are dropped.
func (h *Holder) take(granted []netip.Addr, end Instant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before, now := *h.held.Load(), h.clock()
	next := make(map[netip.Addr]Hold, len(granted))
	same := len(before) == len(granted)
	for _, addr := range granted {
		held := Hold{Addr: addr, Since: now, end: end}
		if was, ok := before[addr]; ok && now < was.end {
			held.Since = was.Since
		} else {
			same = false
		}
		next[addr] = held
	}
	h.held.Store(&next)
	if !same {
		close(h.changed)
		h.changed = make(chan struct{})
	}
}

// addrs returns the addresses that are held now, in order.
func (h *Holder) addrs() (out []netip.Addr) {
	held, _ := h.Held()
	for _, one := range held {
		out = append(out, one.Addr)
	}
	return out
}

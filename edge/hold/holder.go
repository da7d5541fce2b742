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

// Holder has the addresses that one node holds. Holds and Answer may be called by any goroutine.
type Holder struct {
	clock func() Instant
	held  atomic.Pointer[map[netip.Addr]Hold] // never changed in place
	// answering is read-locked while an answer is sent, and locked while addresses change.
	answering sync.RWMutex

	mu      sync.Mutex // of writers
	changed chan struct{}
	limit   func(end Instant)
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

// Answer calls send if this node may answer for an address now, and reports whether it did. Nothing
// is dropped meanwhile, so the leader hears that an address is given back only when nothing is sent
// for it any more. send must not wait.
func (h *Holder) Answer(addr netip.Addr, send func()) bool {
	h.answering.RLock()
	defer h.answering.RUnlock()
	if !h.Holds(addr) {
		return false
	}
	send()
	return true
}

// Limit makes the holder call set with the instant from which on it holds nothing, now and at each
// change. Nothing is sent meanwhile: what an earlier end has let begin is over before a later one
// is set.
func (h *Holder) Limit(set func(end Instant)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.limit = set
	h.answering.Lock()
	defer h.answering.Unlock()
	set(h.end())
}

// end returns the instant from which on nothing is held. The caller has mu.
func (h *Holder) end() (end Instant) {
	for _, held := range *h.held.Load() {
		end = max(end, held.end)
	}
	return end
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
	h.answering.Lock()
	h.held.Store(&next)
	if h.limit != nil {
		h.limit(h.end())
	}
	h.answering.Unlock()
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

package raftstore

import (
	"container/list"
	"sync"

	"github.com/barque/barque/raftstore/command"
)

// requests numbers this store's requests and tracks the unanswered ones.
type requests struct {
	origin uint64

	mu   sync.Mutex
	next uint64
	open *list.List // of uint64, ascending
}

func newRequests(origin uint64) *requests {
	return &requests{origin: origin, next: 1, open: list.New()}
}

// ticket is one request under way.
type ticket struct {
	of    *requests
	id    command.ID
	place *list.Element
}

func (r *requests) begin() ticket {
	r.mu.Lock()
	defer r.mu.Unlock()
	seq := r.next
	r.next++
	return ticket{of: r, id: command.ID{Origin: r.origin, Seq: seq}, place: r.open.PushBack(seq)}
}

// end marks the request as not to be repeated any more.
func (t ticket) end() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.of.open.Remove(t.place)
}

// done returns the number below which all requests have ended.
func (r *requests) done() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if first := r.open.Front(); first != nil {
		return first.Value.(uint64)
	}
	return r.next
}

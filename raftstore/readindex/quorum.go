package readindex

import (
	"context"
	"fmt"
	"sync"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
)

// quorum asks the other voters for their term. Each gets one question at a time. A read that comes
// meanwhile waits for the next one: the question under way may be older than the read.
type quorum struct {
	members func() []group.Member
	termOf  func(addr string) (uint64, error)
	running sync.WaitGroup // questions under way

	mu      sync.Mutex
	waiting map[string][]*acks // by the address of a voter with a question under way
}

// acks counts the voters that are in no later term.
type acks struct {
	term uint64
	done chan struct{} // closed when it is decided

	mu        sync.Mutex
	missing   int // acknowledgements until it is decided
	open      int // voters that have not answered
	undecided bool
	err       error
}

// take returns nil when a quorum was in no later term after take was called.
func (q *quorum) take(ctx context.Context, term uint64) error {
	voters, others := 0, []string(nil)
	for _, m := range q.members() {
		if m.Voter {
			voters++
			if !m.Self {
				others = append(others, m.Address)
			}
		}
	}
	a := &acks{term: term, done: make(chan struct{}), undecided: true, open: len(others)}
	a.missing = voters/2 + 1 - (voters - len(others))
	if a.missing <= 0 {
		return nil
	}
	for _, addr := range others {
		q.ask(addr, a)
	}
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", kv.ErrUnavailable, context.Cause(ctx))
	}
}

func (q *quorum) ask(addr string, a *acks) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if queue, busy := q.waiting[addr]; busy {
		q.waiting[addr] = append(queue, a)
		return
	}
	q.waiting[addr] = nil
	q.running.Go(func() { q.run(addr, []*acks{a}) }) // ends with the last waiting caller, or with the server
}

func (q *quorum) run(addr string, waiters []*acks) {
	for len(waiters) > 0 {
		term, err := q.termOf(addr)
		for _, a := range waiters {
			a.count(term, err)
		}
		q.mu.Lock()
		waiters = q.waiting[addr]
		if q.waiting[addr] = nil; len(waiters) == 0 {
			delete(q.waiting, addr)
		}
		q.mu.Unlock()
	}
}

// count takes one voter's answer.
func (a *acks) count(term uint64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.undecided {
		return
	}
	a.open--
	switch {
	case err == nil && term > a.term:
		a.decide(group.ErrNoLeader)
	case err == nil:
		if a.missing--; a.missing == 0 {
			a.decide(nil)
		}
	case a.open < a.missing:
		a.decide(fmt.Errorf("%w: the leader reaches no quorum: %w", kv.ErrUnavailable, err))
	}
}

func (a *acks) decide(err error) {
	a.undecided, a.err = false, err
	close(a.done)
}

package watchwriter

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// patience is how long a response may keep its turn while others wait for one.
const patience = 5 * time.Millisecond

// turns bounds how many watches are read and written at the same time. Events that come for the
// others meanwhile stay in the store's history. The zero value is ready.
//
//	      take               pass               done
//	idle ──────▶ reading ──────────▶ writing ──────────▶ idle
//	   │   in line, if others have   ▲
//	   └─────────────────────────────┘ for events that were sent without a turn
//
// A turn that lasts longer than patience, while others wait, no longer counts: the client of that
// response does not read, or its network is slow. Such a response mostly waits in the kernel, and
// waits in no line until it was quick again.
type turns struct {
	mu      sync.Mutex
	having  []*Turn // at most as many as there are processors
	waiting []*Turn // in the order in which they came
	timer   *time.Timer
	armed   bool // the timer is going to fire
}

// side is one of the two goroutines that take a turn.
type side uint8

const (
	nobody side = iota
	reads       // events: the goroutine of the watch
	writes      // to the response: the goroutine of the request
)

// Turn is the turn of one watch. Its methods are for the goroutine that brings the events.
type Turn struct {
	turns   *turns
	granted [writes + 1]chan struct{}

	// Guarded by the mu of turns.
	owner  side
	wants  [writes + 1]bool
	queued bool      // in waiting
	counts bool      // in having
	slow   bool      // its last turn lasted longer than patience
	since  time.Time // when the turn began
	begun  bool      // the response has only events to come, and is flushed after them
	ended  bool      // nothing is written any more
}

func newTurn(s *turns) *Turn {
	t := &Turn{turns: s}
	for i := range t.granted {
		t.granted[i] = make(chan struct{}, 1)
	}
	return t
}

// most is how many have a turn at the same time: it takes a processor, and little else.
func most() int { return runtime.GOMAXPROCS(0) }

// Take waits for the turn. It is false when there is none to wait for: the response has not begun,
// or has ended, or the context is done. Without a turn, events can be sent at any time.
//
// The turn ends with Done, or with Pass. Its holder waits for nothing. Before, the goroutines run
// that are ready, among them those that bring the next events.
func (t *Turn) Take(ctx context.Context) bool {
	runtime.Gosched()
	s := t.turns
	s.mu.Lock()
	if !t.begun || t.ended {
		s.mu.Unlock()
		return false
	}
	has := t.ask(reads)
	s.mu.Unlock()
	if has {
		return true
	}
	select {
	case <-t.granted[reads]:
		return true
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.wants[reads] {
		t.wants[reads] = false
		return false
	}
	<-t.granted[reads] // meanwhile
	t.release()
	return false
}

// Pass leaves the turn to the response. The caller has sent at least one event, whose flush ends
// the turn.
func (t *Turn) Pass() {
	s := t.turns
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.ended {
		t.release()
		return
	}
	t.owner = writes
	if t.wants[writes] {
		t.wants[writes] = false
		t.granted[writes] <- struct{}{}
	}
}

// Done ends the turn of a caller that has sent nothing.
func (t *Turn) Done() { t.done() }

// begin records that the response is flushed after its events from now on.
func (t *Turn) begin() {
	t.turns.mu.Lock()
	defer t.turns.mu.Unlock()
	t.begun = true
}

// end records that nothing is written any more.
func (t *Turn) end() {
	t.turns.mu.Lock()
	defer t.turns.mu.Unlock()
	t.ended = true
	if t.owner == writes {
		t.release()
	}
}

// passed reports whether the response has the turn.
func (t *Turn) passed() bool {
	t.turns.mu.Lock()
	defer t.turns.mu.Unlock()
	return t.owner == writes
}

// write waits for the turn of the response, unless it has it.
func (t *Turn) write() {
	s := t.turns
	s.mu.Lock()
	has := t.owner == writes || t.ask(writes)
	s.mu.Unlock()
	if !has {
		<-t.granted[writes]
	}
}

// done ends the turn of its holder.
func (t *Turn) done() {
	t.turns.mu.Lock()
	defer t.turns.mu.Unlock()
	t.release()
}

// ask gives the turn to a side, or sees to it that it is granted; the caller holds mu.
func (t *Turn) ask(who side) bool {
	s := t.turns
	switch {
	case t.owner != nobody || t.queued:
	case t.slow || len(s.having) < most():
		t.have(who, time.Now())
		return true
	default:
		t.enqueue()
		s.watch()
	}
	t.wants[who] = true
	return false
}

// have begins a turn; the caller holds mu.
func (t *Turn) have(who side, now time.Time) {
	t.owner, t.since, t.wants[who] = who, now, false
	if !t.slow {
		t.counts = true
		t.turns.having = append(t.turns.having, t)
	}
}

// enqueue puts the turn at the end of the line; the caller holds mu.
func (t *Turn) enqueue() {
	t.queued = true
	t.turns.waiting = append(t.turns.waiting, t)
}

// grant gives the turn to a side that has waited for it; the caller holds mu.
func (t *Turn) grant(now time.Time) {
	for _, who := range [...]side{writes, reads} {
		if t.wants[who] {
			t.have(who, now)
			t.granted[who] <- struct{}{}
			return
		}
	}
}

// release ends a turn; the caller holds mu.
func (t *Turn) release() {
	s, now, wrote := t.turns, time.Now(), t.owner == writes
	t.owner = nobody
	switch {
	case t.counts:
		s.drop(t)
	case wrote: // reading alone does not show whether the client is quick again
		t.slow = now.Sub(t.since) >= patience
	}
	switch {
	case !t.wants[reads] && !t.wants[writes]:
	case t.slow:
		t.grant(now)
	default: // behind the waiting ones
		t.enqueue()
	}
	if s.grant(now); len(s.waiting) > 0 {
		s.watch()
	}
}

// drop has a turn count no longer; the caller holds mu.
func (s *turns) drop(t *Turn) {
	t.counts = false
	for i, other := range s.having {
		if other == t {
			last := len(s.having) - 1
			s.having[i], s.having[last] = s.having[last], nil
			s.having = s.having[:last]
			return
		}
	}
}

// grant gives turns to those that have waited longest; the caller holds mu.
func (s *turns) grant(now time.Time) {
	for len(s.waiting) > 0 && len(s.having) < most() {
		t := s.waiting[0]
		s.waiting[0] = nil
		s.waiting = s.waiting[1:]
		t.queued = false
		t.grant(now)
	}
}

// watch has expire called while some wait; the caller holds mu.
func (s *turns) watch() {
	switch {
	case s.armed:
		return
	case s.timer == nil:
		s.timer = time.AfterFunc(patience, s.expire)
	default:
		s.timer.Reset(patience)
	}
	s.armed = true
}

// expire ends turns that have lasted too long.
func (s *turns) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = false
	now := time.Now()
	for i := len(s.having) - 1; i >= 0; i-- {
		if t := s.having[i]; now.Sub(t.since) >= patience {
			t.slow = true
			s.drop(t)
		}
	}
	s.grant(now)
	if len(s.waiting) > 0 {
		s.watch()
	}
}

package watchwriter

import (
	"runtime"
	"sync"
	"time"
)

// patience is how long a response may keep its turn while others wait for one.
const patience = 5 * time.Millisecond

// turns bounds how many responses are written to at the same time. Events that come for the others
// meanwhile are gathered. The zero value is ready.
//
//	      take                done
//	idle ──────▶ waiting ──▶ writing ──▶ idle
//	                            │ after patience, if others wait
//	                            ▼     done, in less than patience
//	                          slow ─────────────────────────────▶ idle
//
// The client of a slow response does not read, or its network is slow. Such a response mostly waits
// in the kernel, and needs no turn: take returns at once.
type turns struct {
	mu      sync.Mutex
	writing []*turn // at most as many as there are processors
	waiting []*turn // in the order in which they came
	timer   *time.Timer
	armed   bool // the timer is going to fire
}

// turn is that of one response. Its fields are guarded by the mu of turns; granted is not.
type turn struct {
	granted chan struct{}
	since   time.Time // when it began to write
	slow    bool
}

func newTurn() *turn { return &turn{granted: make(chan struct{}, 1)} }

// most is how many write at the same time: writing takes a processor, and little else.
func most() int { return runtime.GOMAXPROCS(0) }

// take waits for a turn.
func (s *turns) take(t *turn) {
	now := time.Now()
	s.mu.Lock()
	t.since = now
	if t.slow {
		s.mu.Unlock()
		return
	}
	if len(s.writing) < most() {
		s.writing = append(s.writing, t)
		s.mu.Unlock()
		return
	}
	s.waiting = append(s.waiting, t)
	s.watch()
	s.mu.Unlock()
	<-t.granted
}

// done ends a turn.
func (s *turns) done(t *turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if t.slow {
		t.slow = now.Sub(t.since) >= patience
		return
	}
	s.end(t)
	s.grant(now)
}

// end takes a turn away; the caller holds mu.
func (s *turns) end(t *turn) {
	for i, other := range s.writing {
		if other == t {
			last := len(s.writing) - 1
			s.writing[i], s.writing[last] = s.writing[last], nil
			s.writing = s.writing[:last]
			return
		}
	}
}

// grant gives turns to those who have waited longest; the caller holds mu.
func (s *turns) grant(now time.Time) {
	for len(s.waiting) > 0 && len(s.writing) < most() {
		t := s.waiting[0]
		s.waiting[0] = nil
		s.waiting = s.waiting[1:]
		t.since = now
		s.writing = append(s.writing, t)
		t.granted <- struct{}{}
	}
}

// watch has expire called while there are some who wait; the caller holds mu.
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

// expire takes their turns from those who have had them for too long.
func (s *turns) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = false
	now := time.Now()
	for i := len(s.writing) - 1; i >= 0; i-- {
		if t := s.writing[i]; now.Sub(t.since) >= patience {
			t.slow = true
			s.end(t)
		}
	}
	s.grant(now)
	if len(s.waiting) > 0 {
		s.watch()
	}
}

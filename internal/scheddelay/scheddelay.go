// Package scheddelay measures how late this process is scheduled. A process that sleeps for a
// moment and wakes late had to wait for a CPU: of the machine, or of its own Go scheduler.
//
// A Meter keeps the delays of the last half minute. One late wake-up is no starvation, so Delay is
// the third longest. A process that was stopped, or whose machine was, wakes very late without
// being starved: a delay of more than Stopped is ignored.
package scheddelay

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// Every is how long the Meter sleeps between two samples.
	Every = 100 * time.Millisecond
	// Stopped is the least delay that means a stopped process, not a starved one.
	Stopped = 5 * time.Second
	// Remembered is how long a delay counts, to within one of the spans.
	Remembered = spans * span

	span  = 5 * time.Second
	spans = 6
	// rank is the place of Delay among the longest delays.
	rank = 3
)

// Meter measures the scheduling delay. The zero value has measured nothing. Its methods may be
// called from any goroutine.
type Meter struct {
	mu     sync.Mutex
	window window
}

// Run measures until ctx ends.
func (m *Meter) Run(ctx context.Context) {
	timer := time.NewTimer(Every)
	defer timer.Stop()
	for {
		began := time.Now()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		m.Note(now, now.Sub(began)-Every)
		timer.Reset(Every)
	}
}

// Note takes one delay, which ended now.
func (m *Meter) Note(now time.Time, delay time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.window.note(now, delay)
}

// Delay returns how late this process was scheduled lately.
func (m *Meter) Delay() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.window.delay(time.Now())
}

// window has the longest delays of the last spans.
type window struct {
	spans [spans]longest
}

// longest are the longest delays of one span, the longest first.
type longest struct {
	began  time.Time
	delays [rank]time.Duration
}

func (w *window) note(now time.Time, delay time.Duration) {
	if delay <= 0 || delay > Stopped {
		return
	}
	newest := &w.spans[0]
	if now.Sub(newest.began) >= span {
		copy(w.spans[1:], w.spans[:])
		*newest = longest{began: now}
	}
	for i, d := range newest.delays {
		if delay > d {
			copy(newest.delays[i+1:], newest.delays[i:])
			newest.delays[i] = delay
			return
		}
	}
}

func (w *window) delay(now time.Time) time.Duration {
	all := make([]time.Duration, 0, spans*rank)
	for i := range w.spans {
		if now.Sub(w.spans[i].began) < Remembered {
			all = append(all, w.spans[i].delays[:]...)
		}
	}
	if len(all) < rank {
		return 0
	}
	slices.Sort(all)
	return all[len(all)-rank]
}

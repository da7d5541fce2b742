// Package starts paces the starts of pods on a node. After a boot, or when many pods are created at
// once, the runtime would make all their sandboxes and containers at the same time. That takes no
// less time in all, and other processes of the machine get no CPU meanwhile.
//
// A pod begins a start when it makes its sandbox or containers, and ends it when they are made. It
// holds nothing while it pulls images or waits. At most Limit starts are under way:
//
//	waiting ──its turn──▶ called ──Begin──▶ under way ──end──▶ done
//	                        └──not taken for long──▶ done
//
// Static and critical pods are first, then pods that have a sandbox, so that pods become ready one
// after the other; then the others in the order of their arrival. No pod waits for ever: one that
// has waited for long is as urgent as a critical one, and a start that takes very long does not
// count any more.
package starts

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// Patience is the wait after which a start is as urgent as that of a critical pod.
	Patience = time.Minute
	// Held bounds the time for which a start counts, as when the runtime hangs.
	Held = 10 * time.Second
)

// Start is one start of a pod.
type Start struct {
	Pod types.UID
	// Critical pods are first. Begun means that the pod has a sandbox.
	Critical, Begun bool
	// Wake is called, once, when the start may begin. It must not block, nor call the Pacer.
	Wake func()
}

// Config of a Pacer.
type Config struct {
	CPUs int
	// Delay is the scheduling latency of this machine's processes.
	Delay func() time.Duration
}

// Pacer lets starts begin in turn. Its methods may be called from any goroutine.
type Pacer struct {
	config Config

	mu      sync.Mutex
	waiting []waiter               // the first come first
	called  map[types.UID]struct{} // may begin
	turns   map[*turn]struct{}     // called and under way, those that count
}

// waiter is a start that waits.
type waiter struct {
	Start
	since time.Time
}

// turn is a place among the starts that are under way.
type turn struct {
	pod   types.UID
	timer *time.Timer // ends it
}

// New returns a Pacer.
func New(config Config) *Pacer {
	return &Pacer{config: config, called: make(map[types.UID]struct{}), turns: make(map[*turn]struct{})}
}

// Limit returns the maximum of starts under way. It is one at least.
func Limit(cpus int, delay time.Duration) int {
	switch {
	case delay < 50*time.Millisecond:
		return max(4*cpus, 1)
	case delay < 150*time.Millisecond:
		return max(2*cpus, 1)
	case delay < 300*time.Millisecond:
		return max(cpus, 1)
	default:
		return max(cpus/2, 1)
	}
}

// Begin begins a start if it is its turn. The caller calls end when it is done. Otherwise the start
// waits, Wake is called when it is its turn, and the caller calls Begin again. Of one pod only one
// start waits; the newest counts.
func (p *Pacer) Begin(s Start) (end func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, called := p.called[s.Pod]; !called {
		if i := p.find(s.Pod); i >= 0 {
			p.waiting[i].Start = s
		} else {
			p.waiting = append(p.waiting, waiter{s, time.Now()})
		}
		p.call(s.Pod)
	}
	if _, called := p.called[s.Pod]; !called {
		return nil, false
	}
	delete(p.called, s.Pod)
	mine := p.of(s.Pod)
	if mine == nil { // it came late, and does not wait again
		mine = p.take(s.Pod)
	} else {
		mine.timer.Reset(Held)
	}
	return func() { p.end(mine) }, true
}

// Forget drops a waiting pod.
func (p *Pacer) Forget(pod types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.find(pod); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
	}
	if _, called := p.called[pod]; called {
		delete(p.called, pod)
		if t := p.of(pod); t != nil {
			p.free(t)
		}
	}
	p.call("")
}

// call wakes the next pods. self needs no waking. The caller holds mu.
func (p *Pacer) call(self types.UID) {
	limit := Limit(p.config.CPUs, p.config.Delay())
	now := time.Now()
	for len(p.waiting) > 0 && len(p.turns) < limit {
		i := next(p.waiting, now)
		w := p.waiting[i]
		p.waiting = slices.Delete(p.waiting, i, i+1)
		p.called[w.Pod] = struct{}{}
		p.take(w.Pod)
		if w.Pod != self {
			w.Wake()
		}
	}
}

// next returns the index of the next waiter.
func next(waiting []waiter, now time.Time) int {
	rank := func(w waiter) int {
		switch {
		case w.Critical, now.Sub(w.since) >= Patience:
			return 0
		case w.Begun:
			return 1
		default:
			return 2
		}
	}
	best := 0
	for i, w := range waiting {
		if rank(w) < rank(waiting[best]) {
			best = i
		}
	}
	return best
}

// take adds a turn, which does not count for longer than Held. The caller holds mu.
func (p *Pacer) take(pod types.UID) *turn {
	t := &turn{pod: pod}
	t.timer = time.AfterFunc(Held, func() { p.end(t) })
	p.turns[t] = struct{}{}
	return t
}

// end ends a turn. The next one may begin.
func (p *Pacer) end(t *turn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free(t)
	p.call("")
}

// free ends a turn. The caller holds mu.
func (p *Pacer) free(t *turn) {
	t.timer.Stop()
	delete(p.turns, t)
}

// find returns the place of a pod among those that wait, or -1. The caller holds mu.
func (p *Pacer) find(pod types.UID) int {
	return slices.IndexFunc(p.waiting, func(w waiter) bool { return w.Pod == pod })
}

// of returns the turn of a pod, or nil. The caller holds mu.
func (p *Pacer) of(pod types.UID) *turn {
	for t := range p.turns {
		if t.pod == pod {
			return t
		}
	}
	return nil
}

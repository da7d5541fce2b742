package runtime

import (
	"sync"
	"time"
)

// Retry is the wait that a reconciler returns when it cannot finish yet and knows no time at which
// it could: the key comes back with the back-off of an error.
const Retry time.Duration = 1

const (
	// soonest is the shortest wait that a reconciler may ask for as often as it likes. A shorter
	// one is kept to as long as the key's back-off is no longer.
	soonest = 100 * time.Millisecond

	minBackoff = 5 * time.Millisecond
	maxBackoff = time.Minute
)

// backoff is the rate limiter of a Loop's queue. A key that fails waits from minBackoff to
// maxBackoff, each time twice as long. A failure during the wait does not lengthen it: a burst of
// events would put the next try off for long.
type backoff struct {
	mu      sync.Mutex
	failing map[Key]*failures
}

type failures struct {
	count int
	wait  time.Duration
	until time.Time
}

func newBackoff() *backoff { return &backoff{failing: map[Key]*failures{}} }

// When implements workqueue.TypedRateLimiter: it counts a failure and returns how long to wait.
func (b *backoff) When(key Key) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.failing[key]
	if f == nil {
		f = &failures{wait: minBackoff / 2}
		b.failing[key] = f
	}
	f.count++
	now := time.Now()
	if !now.Before(f.until) {
		f.wait = min(2*f.wait, maxBackoff)
		f.until = now.Add(f.wait)
	}
	return f.until.Sub(now)
}

// Forget implements workqueue.TypedRateLimiter.
func (b *backoff) Forget(key Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.failing, key)
}

// NumRequeues implements workqueue.TypedRateLimiter.
func (b *backoff) NumRequeues(key Key) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.failing[key]; f != nil {
		return f.count
	}
	return 0
}

// How often a key may be reconciled, whoever asks for it: so many times at once, and then at this
// interval. Keys that wake themselves or each other can therefore not keep a core busy.
const (
	burst    = 100
	interval = 20 * time.Millisecond
)

// pace spaces the looks at each key.
type pace struct {
	mu    sync.Mutex
	spent map[Key]time.Time // until when the looks so far last, at one an interval
	full  int               // how many keys make it forget those of the past
}

func newPace() *pace { return &pace{spent: map[Key]time.Time{}, full: 1000} }

// take allows a look at a key, or returns how long to wait with it.
func (p *pace) take(key Key, now time.Time) (wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	spent := p.spent[key]
	if spent.Before(now) {
		spent = now
	}
	if wait = spent.Sub(now) - (burst-1)*interval; wait > 0 {
		return wait
	}
	p.spent[key] = spent.Add(interval)
	if len(p.spent) > p.full {
		for k, until := range p.spent {
			if until.Before(now) {
				delete(p.spent, k)
			}
		}
		p.full = max(1000, 2*len(p.spent))
	}
	return 0
}

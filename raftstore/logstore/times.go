package logstore

import (
	"slices"
	"sync"
	"time"
)

// times remembers how long the last writes took. The zero value is ready.
type times struct {
	mu   sync.Mutex
	last [256]sample
	n    int
}

type sample struct {
	at   time.Time // when it was done
	took time.Duration
}

func (t *times) add(took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last[t.n%len(t.last)] = sample{time.Now(), took}
	t.n++
}

// since returns those that were done after a moment, from the shortest to the longest.
func (t *times) since(from time.Time) []time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	sorted := make([]time.Duration, 0, len(t.last))
	for _, s := range t.last[:min(t.n, len(t.last))] {
		if s.at.After(from) {
			sorted = append(sorted, s.took)
		}
	}
	slices.Sort(sorted)
	return sorted
}

// quantiles returns the median and the 99th percentile of those that were done after a moment, and their
// number.
func (t *times) quantiles(from time.Time) (p50, p99 time.Duration, n int) {
	sorted := t.since(from)
	if n = len(sorted); n == 0 {
		return 0, 0, 0
	}
	return sorted[n/2], sorted[n*99/100], n
}

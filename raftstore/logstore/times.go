package logstore

import (
	"slices"
	"sync"
	"time"
)

// times remembers how long the last writes took. The zero value is ready.
type times struct {
	mu   sync.Mutex
	last [256]time.Duration
	n    int
}

func (t *times) add(took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last[t.n%len(t.last)] = took
	t.n++
}

// quantiles returns the median, the 99th percentile and the number of the remembered times.
func (t *times) quantiles() (p50, p99 time.Duration, n int) {
	t.mu.Lock()
	sorted := slices.Sorted(slices.Values(t.last[:min(t.n, len(t.last))]))
	t.mu.Unlock()
	if n = len(sorted); n == 0 {
		return 0, 0, 0
	}
	return sorted[n/2], sorted[n*99/100], n
}

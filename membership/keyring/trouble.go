package keyring

import (
	"sync"
	"time"
)

// tellAgain is how often it is said that something still fails that is tried every few seconds.
const tellAgain = time.Minute

// trouble paces what is said of something that fails again and again: when it begins, then now and then, and when it is over.
type trouble struct {
	mu          sync.Mutex
	since, told time.Time // zero while all is well
}

// fails notes a failure, and tells whether it is to be told.
func (t *trouble) fails(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since.IsZero() {
		t.since = now
	} else if now.Sub(t.told) < tellAgain {
		return false
	}
	t.told = now
	return true
}

// over notes that all is well, and returns for how long it was not; 0 when it was.
func (t *trouble) over(now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since.IsZero() {
		return 0
	}
	lasted := now.Sub(t.since)
	t.since, t.told = time.Time{}, time.Time{}
	return lasted
}

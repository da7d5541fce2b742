// Package trouble limits the log lines about a step that is tried every few seconds and fails
// repeatedly. It reports the begin, each minute of the failure, and the end. Errors are not
// compared, because they may contain times.
package trouble

import (
	"sync"
	"time"
)

// again is the pause between two reports of a lasting failure.
const again = time.Minute

// Trouble is such a step. The zero value has no failure. It is safe for concurrent use.
type Trouble struct {
	mu      sync.Mutex
	current Past
	told    time.Time
}

// Past is a series of failures.
type Past struct {
	Since  time.Time // the first failure
	Tries  int
	Newest error // the last failure
}

// Failed records a failure. It returns the number of failures so far, and whether to log this one.
func (t *Trouble) Failed(err error) (tries int, tell bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if t.current.Tries == 0 {
		t.current.Since = now
	}
	t.current.Tries++
	t.current.Newest = err
	if tell = t.current.Tries == 1 || now.Sub(t.told) >= again; tell {
		t.told = now
	}
	return t.current.Tries, tell
}

// Over ends the series and returns it; false when there was none.
func (t *Trouble) Over() (Past, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	past := t.current
	t.current = Past{}
	return past, past.Tries > 0
}

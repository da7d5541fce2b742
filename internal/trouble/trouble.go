// Package trouble limits the log lines about a step that is tried every few seconds and fails
// repeatedly. It reports the begin, each minute of the failure, and the end. Errors are not
// compared, because they may contain times.
package trouble

import (
	"sync"
	"time"
)

// again is how often it is said that something still fails.
const again = time.Minute

// Trouble is such a step. The zero value is none. It may be used by several at once.
type Trouble struct {
	mu      sync.Mutex
	current Past
	told    time.Time
}

// Past is what there is to tell of trouble that is over.
type Past struct {
	Since  time.Time // the first failure
	Tries  int
	Newest error // the last failure
}

// Failed notes a try that failed, and returns how many there are by now, and whether it is to be
// told.
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

// Over notes that it does not fail any more, and returns what there was; false when there was none.
func (t *Trouble) Over() (Past, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	past := t.current
	t.current = Past{}
	return past, past.Tries > 0
}

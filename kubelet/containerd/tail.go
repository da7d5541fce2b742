package containerd

import (
	"strings"
	"sync"
)

// tail is a writer that remembers the last bytes, for error messages.
type tail struct {
	mu    sync.Mutex
	limit int
	last  []byte
}

func newTail(limit int) *tail { return &tail{limit: limit} }

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = append(t.last, p...)
	if over := len(t.last) - t.limit; over > 0 {
		t.last = append(t.last[:0], t.last[over:]...)
	}
	return len(p), nil
}

// String returns the last three lines in one.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.last)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], " | ")
}

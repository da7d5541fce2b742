package pods

import (
	"fmt"
	"sync"
	"time"

	"github.com/barque/barque/kubelet/cri"
)

// lookPatience is the longest time without a successful look at the runtime's pods before the
// kubelet reports itself unhealthy, as upstream's. A runtime may restart meanwhile.
const lookPatience = 5 * time.Minute

// looks records the results of the looks at the runtime's pods.
type looks struct {
	mu   sync.Mutex
	well time.Time // when one succeeded last, or the first one began
	err  error     // of the last one
}

func (l *looks) begin(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.well, l.err = now, nil
}

func (l *looks) ended(now time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err = err; err == nil {
		l.well = now
	}
}

// Healthy returns the reason why the kubelet does not do its work, or nil: no look at the runtime's
// pods has succeeded for lookPatience. Each one fails, or one does not end.
func (m *Manager) Healthy() error {
	l := &m.looks
	l.mu.Lock()
	defer l.mu.Unlock()
	ago := m.Now().Sub(l.well)
	switch {
	case l.well.IsZero() || ago < lookPatience:
		return nil
	case l.err != nil:
		return fmt.Errorf("the pods of the container runtime cannot be listed since %s: %s", ago.Round(time.Second),
			cri.Message(l.err))
	}
	return fmt.Errorf("a look at the pods of the container runtime has not ended since %s", ago.Round(time.Second))
}

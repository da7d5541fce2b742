package klogs

import (
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"
)

// failedList is said by client-go's informers when they cannot list or watch. Each of them repeats
// it twice a minute for as long as the fault lasts, as while a custom resource cannot be converted.
const failedList = "Failed to watch"

const (
	// repeatAfter is how long the same record is a detail after it was said.
	repeatAfter = 10 * time.Minute
	mostRepeats = 256 // records that are remembered
)

// repeats remembers which records were said.
type repeats struct {
	mu   sync.Mutex
	said map[string]time.Time
}

// again tells whether the same record was said a short time ago. Otherwise it counts as said now.
func (s *repeats) again(r slog.Record) bool {
	var key strings.Builder
	key.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		key.WriteString(" " + a.String())
		return true
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.said[key.String()]; ok && r.Time.Sub(at) < repeatAfter {
		return true
	}
	if s.said == nil {
		s.said = map[string]time.Time{}
	}
	maps.DeleteFunc(s.said, func(_ string, at time.Time) bool { return r.Time.Sub(at) >= repeatAfter })
	if len(s.said) < mostRepeats { // else each is said, rather than none
		s.said[key.String()] = r.Time
	}
	return false
}

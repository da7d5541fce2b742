package klogs

import (
	"log/slog"
	"maps"
	"regexp"
	"strings"
	"sync"
	"time"
)

// failedList is the message of client-go's informers when they cannot list or watch. Each of
// them repeats it twice a minute for as long as the fault lasts, as while a custom resource
// cannot be converted.
const failedList = "Failed to watch"

const (
	// repeatAfter is how long a record is a detail after it was logged.
	repeatAfter = 10 * time.Minute
	mostRepeats = 256 // records that are kept
)

// varying are the parts of an error that differ from one time to the next while the fault is the
// same, with their substitutes. Ports of servers stay, as do status codes and other small numbers:
// they distinguish faults.
var varying = []struct {
	part *regexp.Regexp
	by   string
}{
	// The client's side of a connection, as the net package writes it.
	{regexp.MustCompile(`((?:\d{1,3}\.){3}\d{1,3}|\[[0-9a-fA-F:.]+(?:%\w+)?\]):\d+->`), "$1:#->"},
	// UIDs, times, and durations.
	{regexp.MustCompile(`\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`), "#"},
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z| ?[+-]\d\d:?\d\d)?`), "#"},
	{regexp.MustCompile(`\b(?:\d+(?:\.\d+)?(?:h|m|s|ms|µs|us|ns))+\b`), "#"},
	// Addresses in memory, revisions and sizes.
	{regexp.MustCompile(`\b0x[0-9a-f]+\b`), "#"},
	{regexp.MustCompile(`(^|[^:.\w-])\d{5,}\b`), "$1#"},
}

// normal is an error without its varying parts.
func normal(text string) string {
	for _, v := range varying {
		text = v.part.ReplaceAllString(text, v.by)
	}
	return text
}

// repeats has the logged records.
type repeats struct {
	mu   sync.Mutex
	said map[string]time.Time
}

// again reports whether the same record, or one that differs in its varying parts alone, was logged
// a short time ago. Otherwise it counts as logged now.
func (s *repeats) again(r slog.Record) bool {
	var key strings.Builder
	key.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		key.WriteString(" " + normal(a.String()))
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
	if len(s.said) < mostRepeats { // if it is full, each is logged, rather than none
		s.said[key.String()] = r.Time
	}
	return false
}

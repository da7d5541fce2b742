package klogs

import (
	"fmt"
	"log/slog"
	"testing"
	"time"
)

// TestRepeats: a failure of an informer is said once in ten minutes, another one at once, and the
// memory of them is bounded.
func TestRepeats(t *testing.T) {
	noon := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	record := func(after time.Duration, err string) slog.Record {
		r := slog.NewRecord(noon.Add(after), slog.LevelError, failedList, 0)
		r.AddAttrs(slog.String("err", err))
		return r
	}
	s := new(repeats)
	for _, c := range []struct {
		after time.Duration
		err   string
		again bool
	}{
		{0, "refused", false}, {time.Second, "refused", true}, {time.Second, "forbidden", false},
		{repeatAfter - 1, "refused", true}, {repeatAfter, "refused", false}, {repeatAfter + 1, "refused", true},
	} {
		if got := s.again(record(c.after, c.err)); got != c.again {
			t.Errorf("%s after %v: again is %t", c.err, c.after, got)
		}
	}
	for i := range 10 * mostRepeats {
		s.again(record(time.Hour, fmt.Sprint(i)))
	}
	if len(s.said) != mostRepeats {
		t.Errorf("%d records are remembered", len(s.said))
	}
}

package klogs

import (
	"fmt"
	"log/slog"
	"testing"
	"time"
)

// TestRepeats: a failure of an informer is logged once in ten minutes, another one at once, and the
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
		s.again(record(time.Hour, fmt.Sprintf("things%d.example.com is forbidden", i)))
	}
	if len(s.said) != mostRepeats {
		t.Errorf("%d records are remembered", len(s.said))
	}
}

// TestVaryingParts: errors that differ in their varying parts only are the same one. An error of
// another server, object or kind is another one.
func TestVaryingParts(t *testing.T) {
	for _, c := range []struct {
		one, other string
		same       bool
	}{
		{"read tcp 10.0.0.1:45678->10.0.0.2:6443: connection reset by peer",
			"read tcp 10.0.0.1:51002->10.0.0.2:6443: connection reset by peer", true},
		{"read tcp [fd00::1]:45678->[fd00::2]:6443: i/o timeout",
			"read tcp [fd00::1]:1025->[fd00::2]:6443: i/o timeout", true},
		{"read tcp 10.0.0.1:45678->10.0.0.2:6443: i/o timeout", "read tcp 10.0.0.1:45678->10.0.0.3:6443: i/o timeout",
			false},
		{"read tcp 10.0.0.1:45678->10.0.0.2:6443: i/o timeout", "read tcp 10.0.0.1:45678->10.0.0.2:10250: i/o timeout",
			false},
		{"dial tcp 10.0.0.2:46443: connection refused", "dial tcp 10.0.0.2:46444: connection refused", false},
		{"the server responded with the status code 403", "the server responded with the status code 500", false},
		{"too old resource version: 123456 (234567)", "too old resource version: 345678 (456789)", true},
		{"timed out after 1.5s", "timed out after 2m3.25s", true},
		{"certificate has expired: current time 2026-11-28T12:00:00Z is after 2026-11-01T00:00:00Z",
			"certificate has expired: current time 2026-11-28T12:00:31+01:00 is after 2026-11-01T00:00:00Z", true},
		{"pod 6f1c1c1e-8a52-4f4e-9d4c-0d6f3a1b2c3d is gone", "pod 7f1c1c1e-8a52-4f4e-9d4c-0d6f3a1b2c3d is gone", true},
		{"conversion webhook for a.org/v1 failed", "conversion webhook for a.org/v2 failed", false},
		{"conversion webhook for a12345.org/v1 failed", "conversion webhook for a54321.org/v1 failed", false},
	} {
		if same := normal(c.one) == normal(c.other); same != c.same {
			t.Errorf("%q is %q, %q is %q", c.one, normal(c.one), c.other, normal(c.other))
		}
	}
	s := new(repeats)
	said := 0
	for port := range 1000 {
		r := slog.NewRecord(time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC), slog.LevelError, failedList, 0)
		r.AddAttrs(
			slog.Any("err", fmt.Errorf("read tcp 10.0.0.1:%d->10.0.0.2:6443: connection reset by peer", 40000+port)))
		if !s.again(r) {
			said++
		}
	}
	if said != 1 {
		t.Errorf("a fault of one server was said %d times", said)
	}
}

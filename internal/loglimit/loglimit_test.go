package loglimit

import (
	"fmt"
	"testing"
	"time"
)

// TestFlood: a flood of one cause gives a burst, then one line in a while with the number of
// dropped lines. Other causes lose no lines.
func TestFlood(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	var c Causes
	written, omitted := 0, 0
	for range 60_000 { // ten minutes
		now = now.Add(10 * time.Millisecond)
		if n, ok := c.Take("flood", now); ok {
			written++
			omitted += n
		}
	}
	if want := Burst + int(10*time.Minute/Pause); written > want || written < want-1 {
		t.Errorf("%d lines, want %d", written, want)
	}
	if lost := 60_000 - written - omitted; lost < 0 || lost > int(Pause/(10*time.Millisecond)) {
		t.Errorf("%d lines written, %d counted as left out, of 60,000", written, omitted)
	}
	if _, ok := c.Take("another", now); !ok {
		t.Error("a line of another cause is left out")
	}
	if n, ok := c.Take("flood", now.Add(time.Hour)); !ok || n == 0 {
		t.Errorf("after the flood: ok is %t, %d left out", ok, n)
	}
}

// TestManyCauses: causes of a stranger's choice share one limit, and little memory.
func TestManyCauses(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	var c Causes
	written := 0
	for i := range 100_000 {
		if _, ok := c.Take(fmt.Sprint("cause ", i), now); ok {
			written++
		}
	}
	if len(c.of) > mostCauses || written > mostCauses+Burst {
		t.Errorf("%d causes remembered, %d lines", len(c.of), written)
	}
	now = now.Add(remembered)
	for i := range mostCauses {
		if _, ok := c.Take(fmt.Sprint("new ", i), now); !ok {
			t.Fatal("a new cause has no limit of its own, though the others have had no line for long")
		}
	}
}

// TestCause: lines of one format have one cause, with any text from a stranger.
func TestCause(t *testing.T) {
	for message, want := range map[string]string{
		`discarding stream with unacceptable label "x": from=1.2.3.4:5`: "discarding stream with unacceptable label",
		"http2: server: error reading preface from client 1.2.3.4:5":    "http",
		"failed to receive: EOF from=10.0.0.1:1":                        "failed to receive",
		"Unable to authenticate the request":                            "Unable to authenticate the request",
		": nothing before it":                                           ": nothing before it",
		"":                                                              "",
	} {
		if got := Cause(message); got != want {
			t.Errorf("cause of %q is %q, want %q", message, got, want)
		}
	}
}

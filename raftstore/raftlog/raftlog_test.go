package raftlog

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestRaftRepeatsItselfLessAndLess says the same five times a second for a day, as Raft does while
// it finds no quorum.
func TestRaftRepeatsItselfLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		l := New(slog.New(slog.NewTextHandler(&text, nil)))
		const msg = "Election timeout reached, restarting election"
		lines := func() int { defer text.Reset(); return strings.Count(text.String(), msg) }
		for range 24 * 3600 * 5 {
			l.Warn(msg)
			<-time.After(200 * time.Millisecond)
		}
		if n := lines(); n < 24 || n > 40 {
			t.Errorf("%d lines in a day", n)
		}
		<-time.After(2 * sayAgainMax)
		for range 60 {
			l.Warn(msg)
			<-time.After(time.Second)
		}
		if n := lines(); n != 3 { // at once, after 10 s, after 20 s more
			t.Errorf("%d lines in a minute, of what was not heard for long", n)
		}
		l.Error("failed to heartbeat to", "peer", "s2")
		l.Error("failed to take snapshot", "error", "disk")
		if s := text.String(); strings.Contains(s, "heartbeat") ||
			!strings.Contains(s, "level=WARN msg=\"failed to take snapshot\"") {
			t.Errorf("it says %s", s)
		}
	})
}

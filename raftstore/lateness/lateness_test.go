package lateness

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore/group"
)

// TestTheLongerDelayCounts: that of this server or of the other one, while the report is new.
func TestTheLongerDelayCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, timeouts := time.Duration(0), group.Timeouts{}.WithDefaults()
		l := New(func() time.Duration { return own }, timeouts)
		expect := func(what, id string, delay time.Duration) {
			t.Helper()
			if got, want := l.Extension(id), timeouts.Extension(delay); got != want {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		expect("nobody is late", "a", 0)
		l.Learn("a", 100*time.Millisecond)
		expect("it is late", "a", 100*time.Millisecond)
		expect("another one is late", "b", 0)
		expect("another one is late", "", 0)
		own = 200 * time.Millisecond
		expect("this server is later", "a", own)
		expect("this server is late", "", own)
		l.Learn("a", 300*time.Millisecond)
		expect("it is later", "a", 300*time.Millisecond)
		own = 0
		<-time.After(believed - 1)
		expect("a while ago", "a", 300*time.Millisecond)
		<-time.After(1)
		expect("long ago", "a", 0)
	})
}

package group

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestExtension: an ordinary scheduling delay extends nothing, a longer one never less than a
// shorter one, and none exceeds the bound.
func TestExtension(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		timeouts := Timeouts{Heartbeat: time.Duration(1+rnd.Int64N(10_000)) * time.Millisecond}.WithDefaults()
		a, b := time.Duration(rnd.Int64N(int64(4*timeouts.Heartbeat))),
			time.Duration(rnd.Int64N(int64(4*timeouts.Heartbeat)))
		less, more := timeouts.Extension(min(a, b)), timeouts.Extension(max(a, b))
		if less > more {
			t.Errorf("of %v: %v extends by %v, and %v by %v", timeouts.Heartbeat, min(a, b), less, max(a, b), more)
		}
		if less < 0 || more > 3*timeouts.Heartbeat {
			t.Errorf("of %v: %v and %v", timeouts.Heartbeat, less, more)
		}
		if got := timeouts.Extension(timeouts.Heartbeat / 40); got != 0 {
			t.Errorf("of %v: an ordinary delay extends by %v", timeouts.Heartbeat, got)
		}
	}
	defaults := Timeouts{}.WithDefaults()
	for delay, want := range map[time.Duration]time.Duration{
		0: 0, 25 * time.Millisecond: 0, 125 * time.Millisecond: 600 * time.Millisecond, time.Second: 3 * time.Second,
	} {
		if got := defaults.Extension(delay); got != want {
			t.Errorf("%v extends by %v, want %v", delay, got, want)
		}
	}
}

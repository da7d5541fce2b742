package scheduler

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

// TestUntilBacksOff: the pause between attempts starts short and grows.
func TestUntilBacksOff(t *testing.T) {
	over := errors.New("the term is over")
	for name, c := range map[string]struct {
		done        time.Duration // after which step is done; 0: never
		least, most int           // calls
		latest      time.Duration
		want        error
	}{
		"at once":          {done: time.Nanosecond, least: 2, most: 2, latest: 100 * time.Millisecond},
		"after a second":   {done: time.Second, least: 4, most: 5, latest: 2 * time.Second},
		"never":            {least: 12, most: 20, latest: time.Minute, want: over},
		"after half of it": {done: 30 * time.Second, least: 8, most: 12, latest: 30*time.Second + maxPause},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, over)
				defer cancel()
				began, calls := time.Now(), 0
				err := (&term{cfg: &Config{Clock: clock.RealClock{}}}).until(ctx, 100*time.Millisecond, func() bool {
					calls++
					return c.done > 0 && time.Since(began) >= c.done
				})
				if took := time.Since(began); !errors.Is(err, c.want) || calls < c.least || calls > c.most ||
					took > c.latest {
					t.Errorf("%d calls in %s, and %v; want %d to %d, %s at most, and %v", calls, took, err, c.least,
						c.most, c.latest, c.want)
				}
			})
		})
	}
}

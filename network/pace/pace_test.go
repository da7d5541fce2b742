package pace

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// In virtual time: the moments of the runs are exact.
func TestRun(t *testing.T) {
	const ms = time.Millisecond
	pace := Pace{MinInterval: 50 * ms, Every: 10 * time.Second, RetryMin: time.Second, RetryMax: 4 * time.Second}
	for name, test := range map[string]struct {
		fire  []time.Duration // when the trigger fires
		fails int             // how many runs fail from the start
		until time.Duration
		want  []time.Duration // when the work runs
	}{
		"once at the start": {until: time.Second, want: []time.Duration{0}},
		"a single change at once": {fire: []time.Duration{300 * ms}, until: time.Second,
			want: []time.Duration{0, 300 * ms}},
		"a burst by few runs": {fire: []time.Duration{300 * ms, 301 * ms, 310 * ms, 349 * ms},
			until: time.Second, want: []time.Duration{0, 300 * ms, 350 * ms}},
		"without changes now and then": {until: 25 * time.Second,
			want: []time.Duration{0, 10*time.Second + 50*ms, 20*time.Second + 100*ms}},
		"failures with growing pauses": {fails: 4, until: 15 * time.Second,
			want: []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second, 11 * time.Second}},
		"a change ends a long pause": {fails: 4, until: 10 * time.Second,
			fire: []time.Duration{10 * ms, 4500 * ms, 4600 * ms},
			want: []time.Duration{0, time.Second, 3 * time.Second, 4500 * ms, 5500 * ms}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), test.until)
				defer cancel()
				trigger := NewTrigger()
				for _, at := range test.fire {
					time.AfterFunc(at, trigger.Fire)
				}
				var ran []time.Duration
				failures := 0
				Run(ctx, pace, trigger, func(context.Context) error {
					ran = append(ran, time.Since(start).Round(ms))
					if len(ran) <= test.fails {
						return errors.New("no")
					}
					return nil
				}, func(error) { failures++ })
				if !slices.Equal(ran, test.want) {
					t.Errorf("ran at %v, want %v", ran, test.want)
				}
				if failures != test.fails {
					t.Errorf("told of %d failures, want %d", failures, test.fails)
				}
			})
		})
	}
}

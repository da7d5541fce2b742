package drain

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// TestDeparture: how long a server takes to stop, and its steps meanwhile.
func TestDeparture(t *testing.T) {
	after := func(d time.Duration) func(context.Context) error {
		return func(ctx context.Context) error {
			select {
			case <-time.After(d):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	for name, c := range map[string]struct {
		ready     func(context.Context) error
		listed    time.Duration // for how long it is among the endpoints after it is not ready any more
		least     time.Duration
		most      time.Duration
		handsOver bool
	}{
		"all is well":                 {after(0), time.Second, atLeast, atLeast + look, true},
		"the endpoints are slow":      {after(0), 3 * time.Second, 3 * time.Second, 3*time.Second + look, true},
		"the endpoints do not follow": {after(0), time.Hour, AtMost, AtMost, true},
		"its store is ill": {func(context.Context) error { return errors.New("quarantine") }, time.Hour,
			0, 0, false},
		"an election that ends": {after(time.Second), 2 * time.Second, 2 * time.Second, 2*time.Second + look,
			true},
		"an election without an end":      {after(time.Hour), time.Hour, atLeast, atLeast, false},
		"an election, and slow endpoints": {after(time.Second), time.Hour, AtMost, AtMost, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, handedOver := time.Now(), false
			out := new(Drain)
			Departure{
				Ready: func(ctx context.Context) error {
					if out.Check().Check(nil) == nil {
						t.Errorf("%s: it says that it is ready", name)
					}
					return c.ready(ctx)
				},
				HandOver: func() error { handedOver = true; return nil },
				Listed:   func() bool { return time.Since(began) < c.listed },
				Logger:   slog.New(slog.DiscardHandler),
			}.Run(out)
			if took := time.Since(began); took < c.least || took > c.most || handedOver != c.handsOver {
				t.Errorf("%s: after %s, leadership handed over: %v; want %s to %s, %v", name, took, handedOver, c.least,
					c.most, c.handsOver)
			}
		})
	}
}

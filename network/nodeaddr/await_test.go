package nodeaddr

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestAwait waits for an address, reminds of it, and ends with its context.
func TestAwait(t *testing.T) {
	none := errors.New("network is unreachable")
	for _, c := range []struct {
		name      string
		after     time.Duration // until there is an address
		stop      time.Duration // until the context ends; 0 for never
		reminders int
	}{
		{name: "at once"},
		{name: "late", after: 10 * time.Second, reminders: 1},
		{name: "very late", after: 150 * time.Second, reminders: 3},
		{name: "stopped", after: time.Hour, stop: 30 * time.Second, reminders: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.stop > 0 {
					time.AfterFunc(c.stop, cancel)
				}
				began, reminders := time.Now(), 0
				waited, err := awaitBy(ctx, func() error {
					if time.Since(began) < c.after {
						return none
					}
					return nil
				}, func(err error) {
					if !errors.Is(err, none) {
						t.Errorf("reminded with %v", err)
					}
					reminders++
				})
				if stopped := c.stop > 0; errors.Is(err, context.Canceled) != stopped ||
					errors.Is(err, none) != stopped || err != nil && !stopped {
					t.Errorf("ended with %v", err)
				}
				if err == nil && waited != c.after {
					t.Errorf("waited for %v, want %v", waited, c.after)
				}
				if reminders != c.reminders {
					t.Errorf("%d reminders, want %d", reminders, c.reminders)
				}
			})
		})
	}
}

// TestAwaitTellsEachReason: what is missing first is there, and something else is missing.
func TestAwaitTellsEachReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, told := time.Now(), []string{}
		_, err := awaitBy(t.Context(), func() error {
			switch passed := time.Since(began); {
			case passed < 5*time.Second:
				return errors.New("no IPv4")
			case passed < 10*time.Second:
				return errors.New("no IPv6")
			}
			return nil
		}, func(err error) { told = append(told, err.Error()) })
		if err != nil || !slices.Equal(told, []string{"no IPv4", "no IPv6"}) {
			t.Errorf("told %q, %v", told, err)
		}
	})
}

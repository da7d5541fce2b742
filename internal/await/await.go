// Package await has the waits of tests: for a condition, with a bound that only a hang reaches. It
// is for tests only.
package await

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// Hang is the bound of a wait. It is long enough for a machine that is busy with other tests.
const Hang = 2 * time.Minute

// Polls begin with the shorter interval, which doubles until it is the longer one.
const shortest, longest = time.Millisecond, 50 * time.Millisecond

// True waits until a condition holds, and fails the test when that takes as long as a hang.
func True(t testing.TB, what string, holds func() bool) {
	t.Helper()
	NoError(t, what, func(context.Context) error {
		if !holds() {
			return errors.New("it does not hold")
		}
		return nil
	})
}

// NoError repeats try until it returns no error. After the time of a hang it fails the test with
// the last error. The context of a try ends with the wait.
func NoError(t testing.TB, what string, try func(context.Context) error) {
	t.Helper()
	ctx, cancel := bound(context.Background()) // a clean-up may wait, too: the test's own context is over then
	defer cancel()
	if err := poll(ctx, try); err != nil {
		t.Fatalf("timed out: %s: %v", what, err)
	}
}

func poll(ctx context.Context, try func(context.Context) error) error {
	var last error
	for pause := shortest; ; pause = min(2*pause, longest) {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil { // an error that the end of the wait caused explains nothing
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), last)
		case <-time.After(pause): // brief: the interval of a poll
		}
	}
}

// Value returns the next value of a channel, or the zero value when the channel is closed. It fails
// the test when neither comes.
func Value[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	timer := time.NewTimer(Hang)
	defer timer.Stop()
	select {
	case v := <-from:
		return v
	case <-timer.C:
		t.Fatalf("timed out: %s", what)
		panic("unreachable")
	}
}

// Context returns a context that ends with the test, or when it lasts as long as a hang.
func Context(t testing.TB) context.Context {
	ctx, cancel := bound(t.Context())
	t.Cleanup(cancel)
	return ctx
}

func bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, Hang, fmt.Errorf("it hangs: not within %v", Hang))
}

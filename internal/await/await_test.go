package await

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// recorder is a test that may fail.
type recorder struct {
	*testing.T
	failed string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	var text strings.Builder
	for _, arg := range args {
		if err, ok := arg.(error); ok {
			text.WriteString(err.Error())
		} else if s, ok := arg.(string); ok {
			text.WriteString(s + " ")
		}
	}
	r.failed = format + " " + text.String()
	runtime.Goexit()
}

// A wait for a condition that comes true succeeds, however long it takes. Otherwise the test fails
// after the time of a hang, with the condition and its last error.
func TestWaits(t *testing.T) {
	late := Hang - time.Second
	errYet := errors.New("not yet")
	for name, c := range map[string]struct {
		waits func(t testing.TB)
		after time.Duration
		fails string // words that the failure has
	}{
		"a condition": {func(t testing.TB) {
			began := time.Now()
			True(t, "it is late", func() bool { return time.Since(began) >= late })
		}, late, ""},
		"no condition": {func(t testing.TB) { True(t, "the moon", func() bool { return false }) }, Hang, "the moon"},
		"a try": {func(t testing.TB) {
			began := time.Now()
			NoError(t, "it is late", func(context.Context) error {
				if time.Since(began) < late {
					return errYet
				}
				return nil
			})
		}, late, ""},
		"no try": {func(t testing.TB) {
			NoError(t, "the moon", func(ctx context.Context) error {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				return errYet
			})
		}, Hang, "not yet"},
		"a try that hangs": {func(t testing.TB) {
			NoError(t, "the moon", func(ctx context.Context) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
		}, Hang, "it hangs"},
		"a value": {func(t testing.TB) {
			from := make(chan int)
			go func() {
				time.Sleep(late)
				from <- 7
			}()
			if got := Value(t, "seven", from); got != 7 {
				t.Errorf("got %d", got)
			}
		}, late, ""},
		"a closed channel": {func(t testing.TB) {
			from := make(chan int)
			close(from)
			Value(t, "the end", from)
		}, 0, ""},
		"no value":  {func(t testing.TB) { Value(t, "the moon", make(chan int)) }, Hang, "the moon"},
		"a context": {func(t testing.TB) { <-Context(t).Done() }, Hang, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, began := &recorder{T: t}, time.Now()
				var ended sync.WaitGroup
				ended.Go(func() { c.waits(r) })
				ended.Wait()
				if (r.failed != "") != (c.fails != "") || !strings.Contains(r.failed, c.fails) {
					t.Errorf("it failed with %q, want %q", r.failed, c.fails)
				}
				if after := time.Since(began); after < c.after || after > c.after+longest {
					t.Errorf("it ended after %v, want %v", after, c.after)
				}
			})
		})
	}
}

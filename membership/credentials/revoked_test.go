package credentials

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/membership/join"
)

// TestAgentsAskForRevocations at their start and from time to time, whatever gossip shows, and at
// once when it shows a newer list. After a failure they wait.
func TestAgentsAskForRevocations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var mu sync.Mutex // guards these
		var shown, have, on uint64
		var asked int
		var failure error
		var out bool // the agent says that it is locked out
		changed := make(chan struct{})
		locked := func(act func()) {
			mu.Lock()
			defer mu.Unlock()
			act()
		}
		of := func(version *uint64) func() uint64 {
			return func() (v uint64) { locked(func() { v = *version }); return v }
		}
		f := revokedFollower{Changed: func() (c <-chan struct{}) { locked(func() { c = changed }); return c },
			Shown: of(&shown), Have: of(&have),
			Fetch: func(context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				asked++
				if failure == nil {
					have = max(have, on)
				}
				return failure
			},
			LockedOut: func(is bool) { locked(func() { out = is }) },
			Again:     func() string { return "join again" }, Logger: slog.New(slog.DiscardHandler)}
		done := make(chan error)
		go func() { done <- f.run(ctx) }()
		want := func(what string, after time.Duration, n int) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			locked(func() {
				if asked != n {
					t.Errorf("%s: it has asked %d times, want %d", what, asked, n)
				}
			})
		}
		gossips := func(version uint64) {
			locked(func() {
				shown = version
				close(changed)
				changed = make(chan struct{})
			})
		}
		want("at the start", 0, 1)
		want("before it is time", revokedEvery-time.Second, 1)
		want("from time to time", 2*time.Second, 2)
		locked(func() { on = 5 })
		gossips(5)
		want("gossip shows a newer list", 0, 3)
		gossips(5)
		want("gossip shows the same", 0, 3)
		gossips(9)
		want("the server that answers lags", 0, 4)
		want("and then", revokedRetry, 5)
		locked(func() { on, failure = 9, errors.New("no server answers") })
		want("no server answers", revokedRetry, 6)
		locked(func() { failure = &join.RefusedError{Status: http.StatusForbidden} })
		says := func(what string, is bool) {
			t.Helper()
			locked(func() {
				if out != is {
					t.Errorf("%s: it says that it is locked out: %v", what, out)
				}
			})
		}
		says("no server answers", false)
		want("it was removed", revokedRetry, 7)
		says("it was removed", true)
		gossips(10)
		want("it is patient then", expelledRetry-time.Second, 7)
		says("still", true)
		locked(func() { failure, on = errors.New("no server answers"), 10 })
		want("nobody answers meanwhile", time.Second, 8)
		says("nobody answers meanwhile", true)
		locked(func() { failure = nil })
		want("it was let in again", revokedRetry, 9)
		says("it was let in again", false)
		want("from time to time again", revokedEvery, 10)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

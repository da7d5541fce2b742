package raftstore_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

// TestStaleReads cuts a follower off: a stale read there has a past state and does not wait, a
// linearizable one fails, and neither outlives a reader that gives up.
func TestStaleReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, nil)
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		leader, _ := c.Leader()
		cut := (leader + 1) % 3
		follower := c.Servers[cut]
		commit := func(value string) {
			t.Helper()
			if _, err := c.Servers[leader].Commit(ctx, put("/a", value)); err != nil {
				t.Fatal(err)
			}
		}
		expect := func(opts raftstore.ViewOptions, want string) {
			t.Helper()
			v, err := follower.View(ctx, opts)
			if err != nil {
				t.Fatal(err)
			}
			if item, _ := v.Get("/a"); string(item.Value) != want {
				t.Errorf("%+v: %q, want %q", opts, item.Value, want)
			}
		}
		commit("1")
		expect(raftstore.ViewOptions{}, "1")
		c.Net.Isolate(storetest.Addr(cut))
		commit("2")
		<-time.After(15 * time.Second)
		began := time.Now()
		expect(raftstore.ViewOptions{Stale: true}, "1")
		if waited := time.Since(began); waited != 0 { // virtual time
			t.Errorf("a stale read waited for %v", waited)
		}
		if _, err := follower.View(ctx, raftstore.ViewOptions{}); !errors.Is(err, raftstore.ErrUnavailable) {
			t.Errorf("linearizable, cut off: %v", err)
		}
		over, cancel := context.WithCancelCause(ctx)
		cancel(errEnough)
		if _, err := follower.View(over, raftstore.ViewOptions{}); !errors.Is(err, errEnough) {
			t.Errorf("a reader that gives up: %v", err)
		}
		c.Net.Heal()
		c.Await("a linearizable read",
			func() bool { _, err := follower.View(ctx, raftstore.ViewOptions{}); return err == nil })
		expect(raftstore.ViewOptions{Stale: true}, "2")
	})
}

var errEnough = errors.New("enough")

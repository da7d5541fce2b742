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

// TestStaleReadsSayHowStale cuts a follower off and reads there what it has.
func TestStaleReadsSayHowStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, nil)
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		leader, _ := c.Leader()
		cut := (leader + 1) % 3
		follower := c.Servers[cut]
		age := func(opts raftstore.ViewOptions) (time.Duration, error) {
			v, err := follower.View(ctx, opts)
			if err != nil {
				return 0, err
			}
			if v.AsOf().IsZero() {
				return -1, nil
			}
			return time.Since(v.AsOf()), nil
		}
		if got, err := age(raftstore.ViewOptions{Stale: true}); err != nil || got != -1 {
			t.Errorf("before it has heard of the leader: %v, %v", got, err)
		}
		if _, err := c.Servers[leader].Commit(ctx, put("/a", "1")); err != nil {
			t.Fatal(err)
		}
		if got, err := age(raftstore.ViewOptions{}); err != nil || got < 0 || got > time.Second {
			t.Errorf("linearizable: %v old, %v", got, err)
		}
		<-time.After(time.Minute)
		if got, err := age(raftstore.ViewOptions{Stale: true}); err != nil || got < time.Minute || got > time.Minute+time.Second {
			t.Errorf("a minute later: %v old, %v", got, err)
		}
		bounded := raftstore.ViewOptions{Stale: true, MaxStale: 10 * time.Second}
		if got, err := age(bounded); err != nil || got < 0 || got > time.Second {
			t.Errorf("bounded, with a leader to ask: %v old, %v", got, err)
		}

		c.Net.Isolate(storetest.Addr(cut))
		<-time.After(5 * time.Second)
		if got, err := age(bounded); err != nil || got < 5*time.Second || got > 6*time.Second {
			t.Errorf("cut off for 5 s: %v old, %v", got, err)
		}
		<-time.After(10 * time.Second)
		began := time.Now()
		_, err := age(bounded)
		if !errors.Is(err, raftstore.ErrTooStale) || !errors.Is(err, raftstore.ErrUnavailable) || time.Since(began) > 10*time.Second {
			t.Errorf("cut off for 15 s: %v after %v", err, time.Since(began))
		}
		if got, err := age(raftstore.ViewOptions{Stale: true}); err != nil || got < 15*time.Second {
			t.Errorf("cut off, without a bound: %v old, %v", got, err)
		}
		over, cancel := context.WithCancelCause(ctx)
		cancel(errEnough)
		if _, err := follower.View(over, bounded); !errors.Is(err, errEnough) {
			t.Errorf("a reader that gives up: %v", err)
		}
		c.Net.Heal()
		c.Await("a bounded read", func() bool { _, err := age(bounded); return err == nil })
	})
}

var errEnough = errors.New("enough")

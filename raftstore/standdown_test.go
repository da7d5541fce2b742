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

// A leader that is about to stop hands over while it goes on serving: no write fails, and the term
// that it led is over. A server that does not lead has nothing to do.
func TestHandOverWhileServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, func(_ int, cfg *raftstore.Config) {
			cfg.Timeouts.Heartbeat, cfg.Timeouts.Lease = 15*time.Second, 15*time.Second // only the call ends a term
		})
		leader, term := c.Leader()
		leading, _, err := c.Servers[leader].AwaitLeadership(limited(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Servers[(leader+1)%3].HandOver(); err != nil {
			t.Errorf("a follower: %v", err)
		}
		if now, same := c.Leader(); now != leader || same != term {
			t.Errorf("server %d leads in term %d after a follower's call, not %d in %d", now, same, leader, term)
		}

		ctx, stop := context.WithCancel(t.Context())
		wrote := make(chan error, 1)
		go func() { // ends with ctx
			for n := 0; ; n++ {
				_, err := c.Servers[leader].Commit(ctx,
					raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: "k", Value: []byte{byte(n)}}}})
				if err != nil || ctx.Err() != nil {
					if ctx.Err() != nil {
						err = nil
					}
					wrote <- err
					return
				}
			}
		}()
		if err := c.Servers[leader].HandOver(); err != nil {
			t.Fatal(err)
		}
		<-leading.Done()
		if cause := context.Cause(leading); !errors.Is(cause, raftstore.ErrLeadershipEnded) {
			t.Errorf("the term ended because %v", cause)
		}
		if now, later := c.Leader(); now == leader || later <= term {
			t.Errorf("server %d leads in term %d after the hand-over by %d in %d", now, later, leader, term)
		}
		if err := c.Servers[leader].Ready(t.Context()); err != nil {
			t.Errorf("the server that handed over does not serve: %v", err)
		}
		stop()
		if err := <-wrote; err != nil {
			t.Errorf("a write failed: %v", err)
		}
	})
}

// TestHandOverToOne: only a voter that may lead is made the leader. If none may, or it does not
// answer, the leader leads on in its term.
func TestHandOverToOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, func(_ int, cfg *raftstore.Config) {
			cfg.Timeouts.Heartbeat, cfg.Timeouts.Lease = 15*time.Second, 15*time.Second // only the call ends a term
		})
		for range 6 {
			leader, term := c.Leader()
			if err := c.Servers[leader].HandOverTo(limited(t), "of a test",
				func(string) bool { return false }); !errors.Is(err, raftstore.ErrUnavailable) {
				t.Fatalf("to nobody: %v", err)
			}
			if now, same := c.Leader(); now != leader || same != term {
				t.Fatalf("server %d leads in term %d, not %d in %d", now, same, leader, term)
			}
			to := (leader + 2) % 3
			if err := c.Servers[(leader+1)%3].HandOverTo(limited(t), "of a test",
				func(string) bool { return true }); err != nil {
				t.Fatalf("a follower: %v", err)
			}
			leading, _, err := c.Servers[leader].AwaitLeadership(limited(t))
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Servers[leader].HandOverTo(limited(t), "of a test",
				func(id string) bool { return id == c.Servers[to].ID() }); err != nil {
				t.Fatal(err)
			}
			<-leading.Done()
			if _, _, err := c.Servers[to].AwaitLeadership(limited(t)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

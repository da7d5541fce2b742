package raftstore_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

// TestLeaderThatFallsSilent drops the leader's messages, both ways, which breaks no connection. A
// write that waits for its answer must be repeated at the next leader, and must take effect once.
func TestLeaderThatFallsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, nil)
		old, _ := c.Leader()
		follower := c.Servers[(old+1)%3]
		before, err := follower.Commit(limited(t), put("/k", "1"))
		if err != nil {
			t.Fatal(err)
		}
		c.Net.Mute(storetest.Addr(old))
		began := time.Now()
		done, err := follower.Commit(context.Background(), put("/k", "2"))
		if err != nil || done.Revision != before.Revision+1 {
			t.Fatalf("revision %d after %d: %v", done.Revision, before.Revision, err)
		}
		// Two elections at most, which take twice the heartbeat of 100 ms each, and no time-out of
		// a call.
		if took := time.Since(began); took > time.Second {
			t.Errorf("the write took %v", took)
		}

		// The connections to the old leader are there again, with the messages that were under way.
		c.Net.Heal()
		c.Await("equal states", func() bool { return sameState(c) })
		if r := c.Servers[old].Revision(); r != done.Revision {
			t.Errorf("the write took effect again: revision %d, want %d", r, done.Revision)
		}
	})
}

// TestReadsOfASilencedLeader asks a leader that no other server hears. It must not answer from its
// own state.
func TestReadsOfASilencedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, nil)
		old, _ := c.Leader()
		c.Net.Mute(storetest.Addr(old))
		if _, err := c.Servers[(old+1)%3].Commit(context.Background(), put("/k", "2")); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if v, err := c.Servers[old].View(ctx, raftstore.ViewOptions{}); err == nil {
			t.Errorf("it answered with revision %d", v.Revision())
		}
	})
}

package raftstore_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

// TestSinceEarlierProof: a leader proves that it leads, and is cut off. Its successor learns how
// long ago the last proof was, which is longer than its own term. It does not count proofs of its
// own.
func TestSinceEarlierProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, nil)
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		old, term := c.Leader()
		time.Sleep(time.Minute) // the configuration and the processes are older than all that counts
		for range 10 {
			if err := c.Servers[old].ConfirmTerm(ctx, term); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		proven := time.Now() // or up to 100 ms before
		c.Net.Isolate(storetest.Addr(old))
		next, later := successor(ctx, c, old, term)
		for range 3 {
			time.Sleep(time.Second)
			if err := next.ConfirmTerm(ctx, later); err != nil {
				t.Fatal(err)
			}
			since, err := next.SinceEarlierProof(ctx, later)
			if real := time.Since(proven); err != nil || since < real || since > real+200*time.Millisecond {
				t.Errorf("%s since the last proof, and the old leader was cut off for %s: %v", since, real, err)
			}
		}
		if since, err := c.Servers[old].SinceEarlierProof(ctx, term); err == nil {
			t.Errorf("a leader that was cut off learns of %s", since)
		}
		if since, err := next.SinceEarlierProof(ctx, term); err == nil {
			t.Errorf("for an earlier term: %s", since)
		}
	})
}

// TestSinceEarlierProofAfterAStart: a process does not know what the one before has answered.
func TestSinceEarlierProofAfterAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		c := storetest.NewCluster(t, 3, func(i int, cfg *raftstore.Config) {
			cfg.InMemory, cfg.Dir = false, filepath.Join(dir, fmt.Sprint(i))
		})
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		old, _ := c.Leader()
		time.Sleep(time.Minute)
		started, follower := time.Now(), (old+1)%3
		c.Crash(follower)
		c.Start(follower)
		var term uint64
		c.Await("the follower is back", func() bool {
			old, term = c.Leader()
			return old != follower && c.Servers[follower].Status().Term == term
		})
		c.Net.Isolate(storetest.Addr(old))
		next, later := successor(ctx, c, old, term)
		since, err := next.SinceEarlierProof(ctx, later)
		if err != nil || since > time.Since(started) {
			t.Errorf("%s since the last proof, and a server runs for %s: %v", since, time.Since(started), err)
		}
	})
}

// successor waits for another leader than the old one, in a later term.
func successor(ctx context.Context, c *storetest.Cluster, old int, term uint64) (next *raftstore.Server, later uint64) {
	c.Await("another leader", func() bool {
		for i, s := range c.Servers {
			if now := s.Status().Term; i != old && now > term && s.ConfirmTerm(ctx, now) == nil {
				next, later = s, now
				return true
			}
		}
		return false
	})
	return next, later
}

package raftstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

// A restore whose caller goes away while no quorum answers has changed nothing, knows that, and
// blocks no other request: neither in its first step nor in the middle.
func TestRestoreThatIsGivenUpIsDropped(t *testing.T) {
	for name, before := range map[string]int{"before it has begun": 0, "in the middle": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := storetest.NewCluster(t, 3, nil)
				leader, _ := c.Leader()
				s := c.Servers[leader]
				if _, err := s.Commit(limited(t), put("/kept", "1")); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(limited(t))
				defer cancel()
				cut := func() { // a proposal now is in the leader's log, and committed when the network is well again
					c.Net.Isolate(storetest.Addr(leader))
					time.AfterFunc(20*time.Millisecond, cancel)
					time.AfterFunc(40*time.Millisecond, c.Net.Heal)
				}
				if before == 0 {
					cut()
				}
				chunk := []byte(strings.Repeat("x", 600<<10))
				_, err := s.Restore(ctx, func(yield func(*raftstore.Item) error) error {
					for i, key := range []string{"/a", "/b"} {
						if i > 0 && i == before {
							cut()
						}
						if err := yield(&raftstore.Item{Key: key, Value: chunk}); err != nil {
							return err
						}
					}
					return nil
				}, raftstore.RestoreOptions{})
				if err == nil || errors.Is(err, raftstore.ErrUnknownOutcome) ||
					!strings.Contains(err.Error(), "nothing was changed") || !errors.Is(err, context.Canceled) {
					t.Errorf("the restore that was given up: %v", err)
				}
				if got := contents(t, s.Store); len(got) != 1 || got["/kept"] != "1" {
					t.Errorf("the store has %d items", len(got))
				}
				if _, err := s.Restore(limited(t), items([]string{"/x"}, "1"), raftstore.RestoreOptions{}); err != nil {
					t.Errorf("a restore at once after it: %v", err)
				}
			})
		})
	}
}

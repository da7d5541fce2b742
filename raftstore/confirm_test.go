package raftstore_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore/storetest"
)

// TestConfirmTerm: a leader proves its own term to itself. A follower cannot, nor can a leader that
// was cut off and does not know of its successor, nor for the term before.
func TestConfirmTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, nil)
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		leader, term := c.Leader()
		if err := c.Servers[leader].ConfirmTerm(ctx, term); err != nil {
			t.Errorf("the leader, in term %d: %v", term, err)
		}
		if err := c.Servers[(leader+1)%3].ConfirmTerm(ctx, term); err == nil {
			t.Error("a follower confirms the term")
		}
		if err := c.Servers[leader].ConfirmTerm(ctx, term-1); err == nil {
			t.Error("the leader confirms an earlier term")
		}
		c.Net.Isolate(storetest.Addr(leader))
		if err := c.Servers[leader].ConfirmTerm(ctx, term); err == nil {
			t.Error("a leader that was cut off confirms its term")
		}
		c.Net.Heal()
		c.Await("a leader that confirms its term", func() bool {
			for _, s := range c.Servers {
				if s.ConfirmTerm(ctx, s.Status().Term) == nil {
					return true
				}
			}
			return false
		})
	})
}

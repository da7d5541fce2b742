package raftstore_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

// TestDetailsShowTheWays: each server reports how far away the others are, whichever is asked, and
// a way that is closed between two of them is seen from the third.
func TestDetailsShowTheWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, func(i int, cfg *raftstore.Config) {
			cfg.Report = func(context.Context) []byte { return []byte(`"` + cfg.Name + ` reports"`) }
		})
		leader, _ := c.Leader()
		a, b := (leader+1)%3, (leader+2)%3
		c.Net.Delay(func(from, to string, _ int) time.Duration {
			if from == storetest.Addr(b) || to == storetest.Addr(b) {
				return 10 * time.Millisecond
			}
			return time.Millisecond
		})
		ways := func() map[string]raftstore.Way {
			out := make(map[string]raftstore.Way)
			for _, p := range c.Servers[leader].PeerDetails(t.Context()) {
				if p.Status == nil || p.Status.Detail == nil {
					t.Fatalf("%s says nothing: %s", p.Member.Name, p.Error)
				}
				if got, want := string(p.Status.Detail.Report), `"`+p.Member.Name+` reports"`; got != want {
					t.Errorf("%s reports %s", p.Member.Name, got)
				}
				for _, w := range p.Status.Detail.Ways {
					out[p.Member.Name+w.Name] = w
				}
			}
			return out
		}
		name := func(i int) string { return c.Configs[i].Name }
		all := ways()
		if len(all) != 6 {
			t.Errorf("%d ways: %v", len(all), all)
		}
		if near, far := all[name(a)+name(leader)], all[name(a)+name(b)]; near.RTT != 2*time.Millisecond ||
			far.RTT != 20*time.Millisecond || near.Error+far.Error != "" {
			t.Errorf("the way to the leader is %+v, to %s %+v", near, name(b), far)
		}
		c.Net.Cut(storetest.Addr(a), storetest.Addr(b))
		all = ways()
		if all[name(a)+name(b)].Error == "" || all[name(b)+name(a)].Error == "" ||
			all[name(a)+name(leader)].Error != "" {
			t.Errorf("%s and %s are cut off from each other: %v", name(a), name(b), all)
		}
		for _, p := range c.Servers[leader].PeerStatus(t.Context()) {
			if p.Status == nil || p.Status.Detail != nil {
				t.Errorf("%s has a detail that nobody asked for", p.Member.Name)
			}
		}
	})
}

// TestReasonsOfLeaderChanges: an operator can ask later why the leader changed.
func TestReasonsOfLeaderChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, nil)
		change := func(i int, what string, fits func(raftstore.LeaderChange) bool) {
			t.Helper()
			c.Await(what, func() bool {
				for _, change := range c.Servers[i].Status().Changes {
					if fits(change) {
						return true
					}
				}
				return false
			})
		}
		old, term := c.Leader()
		next := (old + 1) % 3
		change(old, "it leads",
			func(l raftstore.LeaderChange) bool { return l.Leader == c.Servers[old].ID() && l.Term == term })
		if err := c.Servers[old].TransferLeadership(t.Context(), c.Servers[next].ID()); err != nil {
			t.Fatal(err)
		}
		change(old, "the old one knows that it was asked to", func(l raftstore.LeaderChange) bool {
			return l.Leader == "" && l.Before == c.Servers[old].ID() && strings.Contains(l.Why, "handed over") &&
				strings.Contains(l.Why, "an operator wants it")
		})
		change(next, "the new one leads", func(l raftstore.LeaderChange) bool {
			return l.Leader == c.Servers[next].ID() && l.Before == c.Servers[old].ID() &&
				l.Why == c.Configs[old].Name+" handed over to "+c.Configs[next].Name
		})
		change((old+2)%3, "the third one follows", func(l raftstore.LeaderChange) bool {
			return l.Leader == c.Servers[next].ID() && l.Before == c.Servers[old].ID()
		})

		c.Net.Isolate(storetest.Addr(next))
		var third int
		c.Await("another leader", func() bool {
			for i, s := range c.Servers {
				if third = i; i != next && s.Status().Role == "leader" {
					return true
				}
			}
			return false
		})
		change(third, "it knows that the other one was silent", func(l raftstore.LeaderChange) bool {
			return l.Leader == c.Servers[third].ID() && l.Before == c.Servers[next].ID() &&
				strings.Contains(l.Why, "nothing was heard of")
		})
		change(next, "the silent one knows that nobody answered", func(l raftstore.LeaderChange) bool {
			return l.Leader == "" && l.Before == c.Servers[next].ID() &&
				strings.Contains(l.Why, "too few servers have answered")
		})
	})
}

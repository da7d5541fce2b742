//go:build !race

// hashicorp/raft 1.8.0 reads the ID of a follower without its lock when the follower has taken
// entries (updateLastAppended), while the leader may put the follower's new address beside that ID.
// The ID stays what it was, so nothing comes of it; the race detector cannot know. `make
// test-all-unit` runs these tests without it.

package raftstore_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

func elsewhere(i int) string { return fmt.Sprintf("moved%d:6444", i) }

// restartAt stops all servers and starts them at other addresses.
func restartAt(t *testing.T, c *storetest.Cluster, addr func(i int) string) {
	t.Helper()
	ids := make([]string, len(c.Servers))
	for i, s := range c.Servers {
		ids[i] = s.ID()
	}
	for i := range c.Servers {
		c.Stop(i)
	}
	for i := range c.Servers {
		c.StartAt(i, addr(i))
	}
	ctx := limited(t)
	for i, s := range c.Servers {
		if _, err := s.Commit(ctx, put(fmt.Sprintf("/%s/%d", addr(0), i), "1")); err != nil {
			t.Fatalf("server %d, at %s: %v", i, addr(i), err)
		}
	}
	c.Await("the group has the new addresses", func() bool {
		for _, s := range c.Servers {
			for _, m := range s.Members() {
				for i, id := range ids {
					if m.ID == id && m.Address != addr(i) {
						return false
					}
				}
			}
		}
		return true
	})
	for i, s := range c.Servers {
		if len(voters(s)) != 3 || s.ID() != ids[i] {
			t.Errorf("server %d: %v vote, its ID was %s and is %s", i, voters(s), ids[i], s.ID())
		}
	}
	c.Await("equal states", func() bool { return sameState(c) })
}

func TestAllAddressesChange(t *testing.T) {
	for name, hints := range map[string]func(i int) []string{
		"each is told all":          func(int) []string { return []string{elsewhere(0), elsewhere(1), elsewhere(2)} },
		"all are told of one":       func(int) []string { return []string{elsewhere(1)} },
		"one is told of the others": func(i int) []string { return map[int][]string{2: {elsewhere(0), elsewhere(1)}}[i] },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := onDisk(t)
				c := storetest.NewCluster(t, 3, func(i int, cfg *raftstore.Config) {
					disk(i, cfg)
					cfg.RetryFor = 25 * time.Second
					cfg.Peers = func() []string { return hints(i) }
				})
				restartAt(t, c, elsewhere)
				restartAt(t, c, elsewhere) // with nothing changed
			})
		})
	}
}

// The servers get each other's addresses: somebody answers at each, and it is the wrong one.
func TestAddressesArePermuted(t *testing.T) {
	for name, to := range map[string][]int{"in a circle": {1, 2, 0}, "two of them": {1, 0, 2}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := onDisk(t)
				c := storetest.NewCluster(t, 3, func(i int, cfg *raftstore.Config) { disk(i, cfg); cfg.RetryFor = 25 * time.Second })
				restartAt(t, c, func(i int) string { return storetest.Addr(to[i]) })
			})
		})
	}
}

// One server moves while the others go on.
func TestOneServerMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, onDisk(t))
		leader, _ := c.Leader()
		for _, i := range []int{(leader + 1) % 3, leader} {
			c.Stop(i)
			c.StartAt(i, elsewhere(i))
			id := c.Servers[i].ID()
			c.Await("the others know it", func() bool {
				for _, s := range c.Servers {
					for _, m := range s.Members() {
						if m.ID == id && m.Address != elsewhere(i) {
							return false
						}
					}
				}
				return true
			})
		}
		if _, err := c.Servers[leader].Commit(limited(t), put("/a", "1")); err != nil {
			t.Fatal(err)
		}
	})
}

//go:build !race

// hashicorp/raft 1.8.0 reads the ID of a follower without its lock when the follower has taken
// entries (updateLastAppended), while the leader may put the follower's new address beside that ID.
// The ID stays the same, so the race is harmless; the race detector cannot know that. `make
// test-all-unit` runs these tests without it.

package raftstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/peer"
	"github.com/barque/barque/raftstore/storetest"
	"github.com/barque/barque/raftstore/transport"
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
		"each is told all":    func(int) []string { return []string{elsewhere(0), elsewhere(1), elsewhere(2)} },
		"all are told of one": func(int) []string { return []string{elsewhere(1)} },
		"one is told of the others": func(
			i int,
		) []string {
			return map[int][]string{2: {elsewhere(0), elsewhere(1)}}[i]
		},
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

// The servers get each other's addresses: another server answers at each.
func TestAddressesArePermuted(t *testing.T) {
	for name, to := range map[string][]int{"in a circle": {1, 2, 0}, "two of them": {1, 0, 2}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := onDisk(t)
				c := storetest.NewCluster(t, 3,
					func(i int, cfg *raftstore.Config) { disk(i, cfg); cfg.RetryFor = 25 * time.Second })
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

// raftOnly is a transport over which servers do not learn where the others are.
type raftOnly struct{ transport.Stream }

func (s raftOnly) Dial(ctx context.Context, addr, proto string) (net.Conn, error) {
	if proto != peer.ProtoRaft {
		return nil, errors.New("a test has cut it off")
	}
	return s.Stream.Dial(ctx, addr, proto)
}

// TestAddressesWithAndWithoutContact is for docs/benchmarks.md. It logs, in virtual time, how long
// it takes from the start of all servers at other addresses until the leader takes a write, and
// until all servers have it. Without contact they have the addresses in Raft's configuration alone.
func TestAddressesWithAndWithoutContact(t *testing.T) {
	exchanged := func(to ...int) func(int) string { return func(i int) string { return storetest.Addr(to[i]) } }
	for name, test := range map[string]moving{
		"all are new, one is known": {to: elsewhere, known: []string{elsewhere(1)}},
		"all are exchanged":         {to: exchanged(1, 2, 0)},
		"two are exchanged":         {to: exchanged(1, 0, 2), leads: true},
		"all are the same":          {to: storetest.Addr, leads: true, all: true},
	} {
		t.Run(name+"/with",
			func(t *testing.T) { synctest.Test(t, func(t *testing.T) { startElsewhere(t, &test, true) }) })
		t.Run(name+"/without",
			func(t *testing.T) { synctest.Test(t, func(t *testing.T) { startElsewhere(t, &test, false) }) })
	}
}

// moving is a restart of all servers at other addresses.
type moving struct {
	to         func(i int) string
	known      []string // to each server, from the program around it
	leads, all bool     // the outcome without contact
}

func startElsewhere(t *testing.T, m *moving, contact bool) {
	const never = time.Minute
	disk := onDisk(t)
	c := storetest.NewCluster(t, 3, func(i int, cfg *raftstore.Config) {
		disk(i, cfg)
		cfg.Timeouts, cfg.Peers = raftstore.Timeouts{}, func() []string { return m.known }
	})
	for i := range c.Servers {
		c.Stop(i)
	}
	began := time.Now()
	for i := range c.Servers {
		c.Hosts[i] = c.Net.Host(m.to(i))
		cfg := c.Configs[i]
		if cfg.Stream = c.Hosts[i]; !contact {
			cfg.Stream = raftOnly{c.Hosts[i]}
		}
		var err error
		if c.Servers[i], err = raftstore.Open(cfg); err != nil {
			t.Fatal(err)
		}
	}
	var revision uint64
	var written, everywhere time.Duration
	for everywhere == 0 && time.Since(began) < never {
		<-time.After(20 * time.Millisecond)
		have := 0
		for _, s := range c.Servers {
			switch status := s.Status(); {
			case revision > 0 && status.Revision >= revision:
				have++
			case revision == 0 && status.Role == "leader":
				if r, err := s.Commit(limited(t), put("/a", "1")); err == nil {
					revision, written = r.Revision, time.Since(began)
				}
			}
		}
		if have == len(c.Servers) {
			everywhere = time.Since(began)
		}
	}
	t.Logf("a write after %v, on all servers after %v; 0s is not within %v", written.Round(10*time.Millisecond),
		everywhere.Round(10*time.Millisecond), never)
	if leads, all := written > 0, everywhere > 0; leads != (contact || m.leads) || all != (contact || m.all) {
		t.Errorf("a leader takes a write: %v; all have it: %v", leads, all)
	}
}

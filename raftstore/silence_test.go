package raftstore_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

func silent(s *raftstore.Server) []string {
	members, _ := s.Silent()
	var names []string
	for _, m := range members {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return names
}

// awaitSilent waits for a list and returns how long it took. It follows the notifications, so that
// a change that is not announced fails the test.
func awaitSilent(t *testing.T, s *raftstore.Server, want ...string) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		_, changed := s.Silent()
		if slices.Equal(silent(s), want) {
			return time.Since(began)
		}
		select {
		case <-changed:
		case <-time.After(10 * time.Second):
			t.Fatalf("silent are %v, want %v", silent(s), want)
		}
	}
}

func TestLeaderKnowsWhoIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, nil)
		leader, _ := c.Leader()
		lost, other := (leader+1)%3, (leader+2)%3
		awaitSilent(t, c.Servers[leader])

		c.Net.Isolate(storetest.Addr(lost))
		// 100 ms is the heartbeat timeout of these servers; the transport would take 2 s.
		if took := awaitSilent(t, c.Servers[leader], c.Configs[lost].Name); took > 150*time.Millisecond {
			t.Errorf("silence was known after %v", took)
		}
		if names := silent(c.Servers[other]); len(names) > 0 {
			t.Errorf("a follower says that %v are silent", names)
		}
		members, _ := c.Servers[leader].Silent()
		since := members[0].Since
		<-time.After(time.Second)
		if members, _ = c.Servers[leader].Silent(); members[0].Since != since {
			t.Errorf("silent since %v, and then since %v", since, members[0].Since)
		}

		c.Net.Heal()
		awaitSilent(t, c.Servers[leader])
	})
}

func TestNewLeaderKnowsThatTheOldOneIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, nil)
		old, _ := c.Leader()
		c.Net.Isolate(storetest.Addr(old))
		c.Await("another leader", func() bool {
			for i, s := range c.Servers {
				if i != old && s.Status().Role == "leader" {
					return true
				}
			}
			return false
		})
		for i, s := range c.Servers {
			if i == old || s.Status().Role != "leader" {
				continue
			}
			if took := awaitSilent(t, s, c.Configs[old].Name); took > 150*time.Millisecond {
				t.Errorf("the new leader knew after %v", took)
			}
		}
		// The old one, alone, does not lead any more and so says nothing.
		awaitSilent(t, c.Servers[old])
		c.Net.Heal()
	})
}

func TestLeaderKnowsAtOnceWhoRefusesConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, onDisk(t))
		leader, _ := c.Leader()
		gone := (leader + 1) % 3
		c.Stop(gone)
		if took := awaitSilent(t, c.Servers[leader], c.Configs[gone].Name); took > 50*time.Millisecond {
			t.Errorf("silence was known after %v", took)
		}
		c.Start(gone)
		awaitSilent(t, c.Servers[leader])
	})
}

func TestALeaderThatStepsDownForgetsWhoIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 5, nil)
		leader, _ := c.Leader()
		lost := (leader + 1) % 5
		c.Net.Isolate(storetest.Addr(lost))
		awaitSilent(t, c.Servers[leader], c.Configs[lost].Name)
		if err := c.Servers[leader].TransferLeadership(limited(t), c.Servers[(leader+2)%5].ID()); err != nil {
			t.Fatal(err)
		}
		awaitSilent(t, c.Servers[leader])
		awaitSilent(t, c.Servers[(leader+2)%5], c.Configs[lost].Name)
		c.Net.Heal()
	})
}

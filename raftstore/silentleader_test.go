package raftstore_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// newListeningCluster has servers whose leader may be silent for half a second, and Raft's time-out
// far away.
func newListeningCluster(t *testing.T, size int) *storetest.Cluster {
	return storetest.NewCluster(t, size, func(_ int, cfg *raftstore.Config) {
		cfg.Timeouts = raftstore.Timeouts{Heartbeat: patient, Silence: 500 * time.Millisecond,
			PromoteAfter: time.Millisecond}
	})
}

// TestASilentLeaderIsReplaced drops all that the leader sends and gets, as when its process is
// stopped.
func TestASilentLeaderIsReplaced(t *testing.T) {
	rounds := 10
	if testing.Short() {
		rounds = 4
	}
	for _, size := range []int{3, 5} {
		for range rounds {
			synctest.Test(t, func(t *testing.T) {
				c := newListeningCluster(t, size)
				for i := range 20 {
					if _, err := c.Servers[i%size].Commit(limited(t), put("/k", "v")); err != nil {
						t.Fatal(err)
					}
				}
				<-time.After(time.Second)
				old, term := c.Leader()
				began := time.Now()
				c.Net.Mute(storetest.Addr(old))
				if _, err := c.Servers[(old+1)%size].Commit(limited(t), put("/after", "v")); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took < 400*time.Millisecond || took > time.Second {
					t.Errorf("of %d servers: the first write after the leader fell silent took %v", size, took)
				}
				c.Net.Heal()
				<-time.After(2 * time.Second)
				if _, now := c.Leader(); now != term+1 {
					t.Errorf("of %d servers: term %d became term %d", size, term, now)
				}
			})
		}
	}
}

// TestTheNextSilentLeaderIsReplacedAsSoon: the votes that were given when one leader had fallen
// silent do not look as if it had been slow and come back, which would earn the next one three
// times as long.
func TestTheNextSilentLeaderIsReplacedAsSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newListeningCluster(t, 5)
		// so that there is likely to be a tick between a vote and the new leader's first word
		const way = 20 * time.Millisecond
		c.Net.Delay(func(string, string, int) time.Duration { return way })
		for range 3 {
			<-time.After(2 * time.Second)
			old, _ := c.Leader()
			began := time.Now()
			c.Net.Mute(storetest.Addr(old))
			if _, err := c.Servers[(old+1)%5].Commit(limited(t), put("/after", "v")); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > 1500*time.Millisecond {
				t.Errorf("the first write after the leader fell silent took %v", took)
			}
			<-time.After(1500 * time.Millisecond) // one that is heard at once was only slow
			c.Net.Heal()
		}
	})
}

// TestALeaderThatWasDeposedTooSoonTeaches: when the old leader is heard as soon as there is another
// one, the machines are slow: the server that deposed it, and those that agreed, allow the next one
// more, and the one after that.
func TestALeaderThatWasDeposedTooSoonTeaches(t *testing.T) {
	for _, size := range []int{3, 5} {
		synctest.Test(t, func(t *testing.T) {
			c := newListeningCluster(t, size)
			<-time.After(time.Second)
			old, term := c.Leader()
			c.Net.Mute(storetest.Addr(old))
			if _, err := c.Servers[(old+1)%size].Commit(limited(t), put("/after", "v")); err != nil {
				t.Fatal(err)
			}
			c.Net.Heal()
			<-time.After(time.Second)
			next, now := c.Leader()
			if next == old || now == term {
				t.Fatalf("server %d led in term %d, and server %d does in term %d", old, term, next, now)
			}
			c.Net.Mute(storetest.Addr(next))
			<-time.After(1500 * time.Millisecond)
			c.Net.Heal()
			keepsItsLeader(t, c, next, now)
			// A leader that is gone for good is still replaced, before Raft would do it.
			began := time.Now()
			c.Net.Mute(storetest.Addr(next))
			if _, err := c.Servers[(next+1)%size].Commit(limited(t), put("/last", "v")); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > patient {
				t.Errorf("of %d servers: it took %v", size, took)
			}
			c.Net.Heal()
		})
	}
}

// TestWhoWasCutOffLearnsNothing: a server that heard no other for long finds and confirms the next
// silence as soon as the others, whether it hears of the old leader first or of the one that leads
// by now.
func TestWhoWasCutOffLearnsNothing(t *testing.T) {
	for name, test := range map[string]struct {
		heartbeat, away time.Duration
		back            func(net *memnet.Network, alone, next string)
		limit           time.Duration
	}{
		"the old leader is first": {patient, 6 * time.Second, func(*memnet.Network, string, string) {},
			1500 * time.Millisecond},
		"the new leader is first": {patient, 6 * time.Second, func(net *memnet.Network, alone, next string) {
			net.Unblock(next, alone)
			net.Unblock(alone, next)
			<-time.After(1500 * time.Millisecond)
		}, 1500 * time.Millisecond},
		"it gives the old leader up meanwhile": {
			2 * time.Second, 5 * time.Second, func(*memnet.Network, string, string) { <-time.After(time.Second) },
			1500 * time.Millisecond,
		},
		"it gives the old leader up soon": {
			time.Second, 2200 * time.Millisecond, func(*memnet.Network, string, string) {}, 900 * time.Millisecond,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := storetest.NewCluster(t, 3, func(_ int, cfg *raftstore.Config) {
					cfg.Timeouts = raftstore.Timeouts{Heartbeat: test.heartbeat, Silence: 500 * time.Millisecond,
						PromoteAfter: time.Millisecond}
				})
				<-time.After(time.Second)
				old, _ := c.Leader()
				next, alone := (old+1)%3, (old+2)%3
				c.Net.Mute(storetest.Addr(alone)) // the connections stay
				<-time.After(test.away)
				if err := c.Servers[old].TransferLeadership(limited(t), c.Servers[next].ID()); err != nil {
					t.Fatal(err)
				}
				test.back(c.Net, storetest.Addr(alone), storetest.Addr(next))
				c.Net.Heal()
				<-time.After(5 * time.Second)
				leader, _ := c.Leader()
				began := time.Now()
				c.Net.Mute(storetest.Addr(leader))
				if _, err := c.Servers[(leader+1)%3].Commit(limited(t), put("/after", "v")); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > test.limit {
					t.Errorf("the first write after the leader fell silent took %v", took)
				}
				c.Net.Heal()
			})
		})
	}
}

// TestALeaderThatOneServerFindsSlowIsNotDeposed: a server with a bad connection allows the leader
// more, and does not agree sooner with a server that has a good one.
func TestALeaderThatOneServerFindsSlowIsNotDeposed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newListeningCluster(t, 3)
		leader, term := c.Leader()
		slow := storetest.Addr((leader + 1) % 3)
		<-time.After(time.Second)
		c.Net.Block(storetest.Addr(leader), slow)
		<-time.After(450 * time.Millisecond)
		c.Net.Heal()
		<-time.After(time.Second)
		c.Net.Mute(storetest.Addr(leader))
		<-time.After(900 * time.Millisecond)
		c.Net.Heal()
		keepsItsLeader(t, c, leader, term)
	})
}

// TestALeaderThatIsHeardIsNotDeposed: a leader is deposed only when it is silent to a quorum, for
// long enough.
func TestALeaderThatIsHeardIsNotDeposed(t *testing.T) {
	faults := map[string]func(c *storetest.Cluster, leader int){
		"it is silent for a moment": func(c *storetest.Cluster, leader int) {
			c.Net.Mute(storetest.Addr(leader))
			<-time.After(300 * time.Millisecond)
			c.Net.Heal()
		},
		"it stalls again and again, as on a busy machine": func(c *storetest.Cluster, leader int) {
			for _, stall := range []time.Duration{400, 900, 400, 900} { // after the first one it is allowed more
				c.Net.Mute(storetest.Addr(leader))
				<-time.After(stall * time.Millisecond)
				c.Net.Heal()
				<-time.After(200 * time.Millisecond)
			}
		},
		"one server does not hear it": func(c *storetest.Cluster, leader int) {
			c.Net.Cut(storetest.Addr(leader), storetest.Addr((leader+1)%3))
		},
		"one server hears nobody": func(c *storetest.Cluster, leader int) {
			c.Net.Mute(storetest.Addr((leader + 1) % 3))
		},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newListeningCluster(t, 3)
				leader, term := c.Leader()
				<-time.After(time.Second)
				fault(c, leader)
				keepsItsLeader(t, c, leader, term)
				c.Net.Heal()
			})
		})
	}
}

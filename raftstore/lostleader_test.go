package raftstore_test

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/syncbuf"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

// patient is how long the servers of these tests wait for a leader that they do not hear.
const patient = 10 * time.Second

func newPatientCluster(t *testing.T, size int) *storetest.Cluster {
	return storetest.NewCluster(t, size, func(_ int, cfg *raftstore.Config) {
		cfg.Timeouts = raftstore.Timeouts{Heartbeat: patient, PromoteAfter: time.Millisecond}
	})
}

// crash takes a server away as the end of its process does: connections break, and new ones are
// refused. The server itself goes on to run, without a network.
func crash(t *testing.T, c *storetest.Cluster, i int) {
	t.Helper()
	c.Hosts[i].Close()
	dead := c.Servers[i]
	c.Servers[i] = nil
	t.Cleanup(func() { dead.Close() })
}

func TestLeaderWhoseProcessDiesIsReplacedAtOnce(t *testing.T) {
	for _, size := range []int{3, 5} {
		synctest.Test(t, func(t *testing.T) {
			c := newPatientCluster(t, size)
			for i := range 20 {
				if _, err := c.Servers[i%size].Commit(limited(t), put("/k", "v")); err != nil {
					t.Fatal(err)
				}
			}
			old, _ := c.Leader()
			began := time.Now()
			crash(t, c, old)
			if _, err := c.Servers[(old+1)%size].Commit(limited(t), put("/after", "v")); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > 500*time.Millisecond {
				t.Errorf("the first write after the death of the leader took %v", took)
			}
		})
	}
}

// TestOneElectionFollowsADeath lets the servers lose their leader while some are behind and each
// finds out in its own time. Two that campaign depose each other, after which the group waits for
// the heartbeats' time-out.
func TestOneElectionFollowsADeath(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 20
	}
	for round := range rounds {
		size := 3 + 2*(round%2)
		synctest.Test(t, func(t *testing.T) {
			c := newPatientCluster(t, size)
			for i := range 20 {
				if _, err := c.Servers[i%size].Commit(limited(t), put("/k", "v")); err != nil {
					t.Fatal(err)
				}
			}
			old, term := c.Leader()
			began := time.Now()
			crash(t, c, old)
			if _, err := c.Servers[(old+1)%size].Commit(limited(t), put("/after", "v")); err != nil {
				t.Fatal(err)
			}
			if _, now := c.Leader(); now > term+1 || time.Since(began) > time.Second {
				t.Errorf("of %d servers one dies: term %d becomes term %d, and it takes %v", size, term, now,
					time.Since(began))
			}
		})
	}
}

// TestTheServerWithTheLongestLogCampaigns lets one server lag, which would lose the election.
func TestTheServerWithTheLongestLogCampaigns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 5 {
			c := newPatientCluster(t, 3)
			old, term := c.Leader()
			ahead, behind := (old+1)%3, (old+2)%3
			c.Net.Block(storetest.Addr(old), storetest.Addr(behind))
			for range 5 {
				if _, err := c.Servers[old].Commit(limited(t), put("/k", "v")); err != nil {
					t.Fatal(err)
				}
			}
			crash(t, c, old)
			c.Net.Heal() // the other one is behind, and learns now that the leader is gone
			if leader, now := c.Leader(); leader != ahead || now != term+1 {
				t.Errorf("server %d leads in term %d, and not %d, which has the longer log, in term %d", leader, now,
					ahead, term+1)
			}
			c.Close()
		}
	})
}

// keepsItsLeader looks for a while whether the leader stays the one it was, in its term.
func keepsItsLeader(t *testing.T, c *storetest.Cluster, leader int, term uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patient/2)
	defer cancel()
	leading, now, err := c.Servers[leader].AwaitLeadership(ctx)
	if err != nil {
		t.Fatalf("the leader is deposed: %v", err)
	}
	<-leading.Done()
	if now != term || ctx.Err() == nil {
		t.Errorf("the leader of term %d leads in term %d until %v", term, now, context.Cause(leading))
	}
}

func TestALivingLeaderIsNotDeposed(t *testing.T) {
	faults := map[string]func(c *storetest.Cluster, leader int){
		"it refuses new connections": func(c *storetest.Cluster, leader int) {
			c.Net.Refuse(storetest.Addr(leader))
		},
		"its connections break": func(c *storetest.Cluster, leader int) {
			for range 10 {
				for i := range c.Servers {
					c.Net.Reset(storetest.Addr(leader), storetest.Addr(i))
				}
				<-time.After(50 * time.Millisecond)
			}
		},
		"one server loses it": func(c *storetest.Cluster, leader int) {
			c.Net.Refuse(storetest.Addr(leader))
			c.Net.Reset(storetest.Addr(leader), storetest.Addr((leader+1)%3))
		},
		"one server loses it after the other, and finds it again": func(c *storetest.Cluster, leader int) {
			for _, i := range []int{1, 2, 1} {
				c.Net.Refuse(storetest.Addr(leader))
				c.Net.Reset(storetest.Addr(leader), storetest.Addr((leader+i)%3))
				<-time.After(300 * time.Millisecond)
				c.Net.Heal()
				<-time.After(2 * time.Second)
			}
		},
		"one server is cut off": func(c *storetest.Cluster, leader int) {
			c.Net.Cut(storetest.Addr(leader), storetest.Addr((leader+1)%3))
		},
		"its packets are dropped for a while": func(c *storetest.Cluster, leader int) {
			c.Net.Mute(storetest.Addr(leader))
			<-time.After(patient / 4)
			c.Net.Heal()
		},
		"a follower dies": func(c *storetest.Cluster, leader int) {
			c.Hosts[(leader+1)%3].Close()
		},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newPatientCluster(t, 3)
				leader, term := c.Leader()
				<-time.After(time.Second)
				fault(c, leader)
				keepsItsLeader(t, c, leader, term)
				c.Net.Heal()
			})
		})
	}
}

// TestALeaderThatIsShutOutIsDeposedOnce closes the port of a leader that lives and breaks its
// connections to a quorum. It may lose its leadership by that, but no row of elections follows.
func TestALeaderThatIsShutOutIsDeposedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newPatientCluster(t, 3)
		old, term := c.Leader()
		<-time.After(time.Second)
		c.Net.Refuse(storetest.Addr(old))
		c.Net.Reset(storetest.Addr(old), storetest.Addr((old+1)%3))
		c.Net.Reset(storetest.Addr(old), storetest.Addr((old+2)%3))
		<-time.After(time.Minute)
		if _, now := c.Leader(); now > term+2 {
			t.Errorf("term %d became term %d", term, now)
		}
		c.Net.Heal()
	})
}

// TestAVoteIsAskedForOverAConnectionThatWorks lets the next candidate keep connections to the other
// survivor from the time when it led, which are broken since.
func TestAVoteIsAskedForOverAConnectionThatWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newPatientCluster(t, 3)
		// Of two logs that are equal, the server with the later name campaigns.
		const next, old, other = 2, 0, 1
		for _, to := range []int{next, old} {
			from, _ := c.Leader()
			if from != to {
				if err := c.Servers[from].TransferLeadership(limited(t), c.Servers[to].ID()); err != nil {
					t.Fatal(err)
				}
			}
			c.Await("another leader", func() bool { return c.Servers[to].Status().Role == "leader" })
			if _, err := c.Servers[to].Commit(limited(t), put("/k", "v")); err != nil {
				t.Fatal(err)
			}
			<-time.After(patient) // for heartbeats
		}
		c.Net.Reset(storetest.Addr(next), storetest.Addr(other))
		<-time.After(time.Second)
		began := time.Now()
		crash(t, c, old)
		if _, err := c.Servers[next].Commit(limited(t), put("/after", "v")); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("the first write after the death of the leader took %v", took)
		}
	})
}

// TestLogTellsWhyAServerCampaigns: of each election one line says why this server began it,
// whichever server proposed it.
func TestLogTellsWhyAServerCampaigns(t *testing.T) {
	const impatient = 100 * time.Millisecond
	for name, test := range map[string]struct {
		timeouts raftstore.Timeouts
		lose     func(t *testing.T, c *storetest.Cluster, leader int)
		want     string
	}{
		"its process has died": {
			raftstore.Timeouts{Heartbeat: patient, PromoteAfter: time.Millisecond}, crash,
			`LEADER is gone: its connections broke and its address refuses new ones, as 2 of 3 servers found`,
		},
		"it is silent": {
			raftstore.Timeouts{Heartbeat: patient, Silence: impatient, PromoteAfter: time.Millisecond},
			func(_ *testing.T, c *storetest.Cluster, leader int) { c.Net.Mute(storetest.Addr(leader)) },
			`LEADER is gone: nothing was heard of it, nor did it answer, as 2 of 3 servers found`,
		},
		"it is silent, and only Raft counts": {
			raftstore.Timeouts{Heartbeat: impatient, Lease: impatient, Silence: -1, PromoteAfter: time.Millisecond},
			func(_ *testing.T, c *storetest.Cluster, leader int) { c.Net.Mute(storetest.Addr(leader)) },
			`it has heard of no leader, and voted for none, for `,
		},
		"it hands over": {
			raftstore.Timeouts{Heartbeat: patient, PromoteAfter: time.Millisecond},
			func(t *testing.T, c *storetest.Cluster, leader int) {
				if err := c.Servers[leader].TransferLeadership(limited(t), c.Servers[(leader+1)%3].ID()); err != nil {
					t.Fatal(err)
				}
			},
			`LEADER handed over to `,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				logs := make([]syncbuf.Buffer, 3)
				c := storetest.NewCluster(t, 3, func(i int, cfg *raftstore.Config) {
					cfg.Timeouts, cfg.Logger = test.timeouts, slog.New(slog.NewTextHandler(&logs[i], nil))
				})
				old, before := c.Leader()
				<-time.After(time.Second)
				seen := make([]int, 3)
				for i := range logs {
					seen[i] = len(logs[i].String())
				}
				test.lose(t, c, old)
				next := -1
				c.Await("another leader", func() bool {
					next = slices.IndexFunc(c.Servers, func(s *raftstore.Server) bool {
						return s != nil && s.Status().Role == "leader" && s.Status().Term > before
					})
					return next >= 0
				})
				want := `msg="this server campaigns" term=` + strconv.FormatUint(before+1, 10) +
					` reason="` + strings.ReplaceAll(test.want, "LEADER", c.Configs[old].Name)
				if text := logs[next].String()[seen[next]:]; !strings.Contains(text, want) ||
					strings.Count(text, "election") > 1 {
					t.Errorf("it does not say %q, or says more of elections:\n%s", want, text)
				}
			})
		})
	}
}

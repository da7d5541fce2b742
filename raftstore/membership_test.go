package raftstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

func voters(s *raftstore.Server) (names []string) {
	for _, m := range s.Members() {
		if m.Voter {
			names = append(names, m.Name)
		}
	}
	slices.Sort(names)
	return names
}

// expulsions counts, by server, who was told that it is out.
type expulsions [8]atomic.Int32

func (e *expulsions) on(t *testing.T) func(int, *raftstore.Config) {
	disk := onDisk(t)
	return func(i int, cfg *raftstore.Config) {
		disk(i, cfg)
		cfg.OnRemoved = func(raftstore.Removal) { e[i].Add(1) }
	}
}

func TestAServerLeaves(t *testing.T) {
	for name, who := range map[string]int{"the leader": 0, "a follower": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var told expulsions
				c := storetest.NewCluster(t, 3, told.on(t))
				ctx := limited(t)
				leader, _ := c.Leader()
				leaver := (leader + who) % 3
				s := c.Servers[leaver]
				id := s.ID()
				// It asks for it itself, and hears the answer though it is no member any more by then.
				if err := s.Remove(ctx, id, "an operator wanted it"); err != nil {
					t.Fatal(err)
				}
				c.Await("it knows that it is out", func() bool { return told[leaver].Load() == 1 })
				if _, err := c.Servers[(leaver+1)%3].Commit(ctx, put("/a", "1")); err != nil {
					t.Fatal(err)
				}
				if v := voters(c.Servers[(leaver+1)%3]); len(v) != 2 {
					t.Errorf("%v vote", v)
				}
				c.Stop(leaver)
				cfg := c.Configs[leaver]
				cfg.Stream = c.Net.Host(storetest.Addr(leaver))
				var out *raftstore.RemovedError
				if s, err := raftstore.Open(cfg); !errors.As(err, &out) || out.Removal.Why != "an operator wanted it" {
					t.Errorf("its directory opens as %v, %v", s, err)
				}
				// A second removal is none.
				if err := c.Servers[(leaver+1)%3].Remove(ctx, id, "again"); err != nil {
					t.Errorf("again: %v", err)
				}
			})
		})
	}
}

// A server that was removed while it was away is told when it comes back, and is never let in again.
func TestARemovedServerThatComesBackIsToldSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told expulsions
		c := storetest.NewCluster(t, 3, told.on(t))
		ctx := limited(t)
		leader, _ := c.Leader()
		away, other := (leader+1)%3, (leader+2)%3
		id := c.Servers[away].ID()
		c.Crash(away)
		if err := c.Servers[other].Remove(ctx, id, "lost"); err != nil {
			t.Fatal(err)
		}
		c.Start(away)
		c.Await("it knows that it is out", func() bool { return told[away].Load() == 1 })
		var refused *raftstore.RefusedError
		if err := c.Servers[other].AddNonvoter(ctx, id, "elsewhere:1"); !errors.As(err, &refused) || !strings.Contains(err.Error(), "taken out") {
			t.Errorf("its ID is let in again: %v", err)
		}
		c.Stop(away)
	})
}

// TestLeaveSurvivesCrashes has a server leave while servers crash and return. In the end it is a member as
// before, or it is out and knows it; everything that was acknowledged is there.
func TestLeaveSurvivesCrashes(t *testing.T) {
	seed := *seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat with -seed %d", seed)
	out, kept := 0, 0
	for round := range 12 {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, uint64(round)))
			var told expulsions
			c := storetest.NewCluster(t, 3, told.on(t))
			ctx := limited(t)
			if _, err := c.Servers[0].Commit(ctx, put("/before", "1")); err != nil {
				t.Fatal(err)
			}
			leader, _ := c.Leader()
			leaver := rnd.IntN(3)
			id := c.Servers[leaver].ID()
			asked := c.Servers[rnd.IntN(3)]
			var asking sync.WaitGroup
			asking.Go(func() { // it may be the one that crashes, and the departure may have to wait for the one that did
				ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
				defer cancel()
				_ = asked.Remove(ctx, id, "test")
			})
			victim := []int{leader, leaver, rnd.IntN(3)}[rnd.IntN(3)]
			<-time.After(time.Duration(rnd.IntN(int(400 * time.Millisecond))))
			c.Crash(victim)
			asking.Wait()
			<-time.After(time.Duration(rnd.IntN(int(3 * time.Second))))
			var removed *raftstore.RemovedError
			if err := startAgain(c, victim); err != nil && !errors.As(err, &removed) {
				t.Fatal(err)
			}
			witness := c.Servers[(leaver+1)%3]
			c.Await("the leave is finished or undone", func() bool {
				v := voters(witness)
				isOut := !slices.Contains(v, c.Configs[leaver].Name)
				knows := told[leaver].Load() > 0 || c.Servers[leaver] == nil
				return isOut && len(v) == 2 && knows || !isOut && len(v) == 3 && !leaving(witness)
			})
			if len(voters(witness)) == 2 {
				out++
			} else {
				kept++
			}
			v, err := witness.View(limited(t), raftstore.ViewOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := v.Get("/before"); !ok {
				t.Error("an acknowledged write is lost")
			}
		})
	}
	t.Logf("%d left, %d stayed", out, kept)
	if out == 0 {
		t.Error("nobody ever left")
	}
}

func startAgain(c *storetest.Cluster, i int) error {
	if c.Servers[i] != nil {
		return nil
	}
	cfg := c.Configs[i]
	c.Hosts[i] = c.Net.Host(storetest.Addr(i))
	cfg.Stream = c.Hosts[i]
	s, err := raftstore.Open(cfg)
	if err == nil {
		c.Servers[i] = s
	}
	return err
}

// leaving tells whether, by the leader's word, somebody is on the way out.
func leaving(s *raftstore.Server) bool {
	leader := false
	for _, p := range s.PeerStatus(context.Background()) {
		if p.Status != nil && len(p.Status.Health) > 0 {
			leader = true
			for _, h := range p.Status.Health {
				if h.Standing == "leaving" {
					return true
				}
			}
		}
	}
	return !leader
}

func TestDemotedStaysWithoutAVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, nil)
		leader, _ := c.Leader()
		s := c.Servers[(leader+1)%3]
		id := c.Servers[leader].ID()
		if err := s.Demote(limited(t), id); err != nil {
			t.Fatal(err)
		}
		if v := voters(s); len(v) != 2 || slices.Contains(v, c.Configs[leader].Name) {
			t.Fatalf("after the demotion of %s %v vote", id, v)
		}
		<-time.After(time.Minute) // it is well all the time
		if v := voters(s); len(v) != 2 {
			t.Fatalf("a minute later %v vote", v)
		}
		if err := s.Promote(limited(t), id); err != nil {
			t.Fatal(err)
		}
		c.Await("three voters", func() bool { return len(voters(s)) == 3 })
		var refused *raftstore.RefusedError
		c.Stop((leader + 2) % 3)
		if err := s.Demote(limited(t), id); !errors.As(err, &refused) || !strings.Contains(err.Error(), "they need 2") {
			t.Errorf("a demotion that breaks the quorum: %v", err)
		}
	})
}

func TestNewcomerWithoutContactGetsNoVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, nil)
		ctx := limited(t)
		leader, _ := c.Leader()
		follower := (leader + 1) % 3
		fourth := c.Add(nil)
		c.Net.Cut(storetest.Addr(fourth), storetest.Addr(follower))
		c.Start(fourth)
		if err := c.Servers[fourth].Join(ctx, []string{storetest.Addr(leader)}); err != nil {
			t.Fatal(err)
		}
		<-time.After(20 * time.Second)
		if v := voters(c.Servers[leader]); len(v) != 3 {
			t.Fatalf("%v vote, though s3 and s%d do not reach each other", v, follower)
		}
		var refused *raftstore.RefusedError
		if err := c.Servers[leader].Promote(ctx, c.Servers[fourth].ID()); !errors.As(err, &refused) || !strings.Contains(err.Error(), "does not reach") {
			t.Errorf("promotion by hand: %v", err)
		}
		why := ""
		for _, h := range c.Servers[leader].Status().Health {
			if h.Name == "s3" {
				why = h.Reason
			}
		}
		if !strings.Contains(why, fmt.Sprintf("s%d does not reach s3", follower)) {
			t.Errorf("its health is %q", why)
		}
		c.Net.Heal()
		c.Await("its vote", func() bool { return len(voters(c.Servers[leader])) == 4 })
	})
}

// TestNewcomerGetsItsVoteWhileAMachineIsOff has a member whose address does not even refuse: asking it takes all the
// time that there is for a look at the members.
func TestNewcomerGetsItsVoteWhileAMachineIsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, nil)
		leader, _ := c.Leader()
		off := (leader + 1) % 3
		c.Net.Mute(storetest.Addr(off))
		fourth := c.Add(nil)
		c.Start(fourth)
		c.Net.Block(storetest.Addr(off), storetest.Addr(fourth))
		if err := c.Servers[fourth].Join(limited(t), []string{storetest.Addr(leader)}); err != nil {
			t.Fatal(err)
		}
		c.Await("its vote", func() bool { return len(voters(c.Servers[leader])) == 4 })
	})
}

func TestDeadServerIsTakenOutWhenReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := onDisk(t)
		edit := func(i int, cfg *raftstore.Config) { disk(i, cfg); cfg.CleanAfter = time.Minute }
		c := storetest.NewCluster(t, 3, edit)
		leader, _ := c.Leader()
		dead := (leader + 1) % 3
		c.Crash(dead)
		<-time.After(10 * time.Minute)
		if v := voters(c.Servers[leader]); len(v) != 3 {
			t.Fatalf("%v vote: without a replacement the dead one must stay", v)
		}
		fourth := c.Add(edit)
		c.Start(fourth)
		if err := c.Servers[fourth].Join(limited(t), []string{storetest.Addr(leader)}); err != nil {
			t.Fatal(err)
		}
		c.Await("the replacement votes and the dead one is out", func() bool {
			v := voters(c.Servers[leader])
			return len(v) == 3 && slices.Contains(v, "s3") && !slices.Contains(v, c.Configs[dead].Name)
		})
	})
}

// TestWhyAServerCannotJoin: the reason is told, and not that the last attempt had no time left.
func TestWhyAServerCannotJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 1, nil)
		other, err := raftstore.Open(raftstore.Config{Name: "x", InMemory: true, ClusterID: "another", Stream: c.Net.Host("x:1")})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		time.AfterFunc(2900*time.Millisecond, func() { c.Net.Mute(storetest.Addr(0)) })
		var stranger *raftstore.StrangerError
		if err := other.Join(ctx, []string{storetest.Addr(0)}); !errors.As(err, &stranger) {
			t.Errorf("Join: %v", err)
		}
		c.Net.Heal()
	})
}

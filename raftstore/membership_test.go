package raftstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/syncbuf"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/storetest"
	"github.com/barque/barque/raftstore/transport/memnet"
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

// expulsions counts, by server, the calls of OnRemoved.
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
				// It asks for it itself, and hears the answer though it is no member any more by
				// then.
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

// A server that was removed while it was away learns it when it comes back, and is never let
// in again.
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
		if err := c.Servers[other].AddNonvoter(ctx, id, "elsewhere:1"); !errors.As(err, &refused) ||
			!strings.Contains(err.Error(), "taken out") {
			t.Errorf("its ID is let in again: %v", err)
		}
		c.Stop(away)
	})
}

// TestDeparturesSurviveCrashes has a server leave, or lose its vote, while servers crash, any of
// them or all, and return much later. Once that is recorded it is carried out; if it was not
// recorded the server votes as before.
func TestDeparturesSurviveCrashes(t *testing.T) {
	seed := *seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat with -seed %d", seed)
	done := map[bool]int{}
	rounds, away := 24, time.Minute
	if testing.Short() {
		rounds, away = 12, 15*time.Second
	}
	for round := range rounds {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, uint64(round)))
			leaves := round%2 == 0
			var told expulsions
			c := storetest.NewCluster(t, 3, told.on(t))
			before, err := c.Servers[0].Commit(limited(t), put("/before", "1"))
			if err != nil {
				t.Fatal(err)
			}
			leader, _ := c.Leader()
			c.Net.Delay(func(string, string, int) time.Duration { return 5 * time.Millisecond })
			leaver := rnd.IntN(3)
			name, id := c.Configs[leaver].Name, c.Servers[leaver].ID()
			asked := c.Servers[rnd.IntN(3)]
			var answer error
			var asking sync.WaitGroup
			asking.Go(func() { // it may be the one that crashes
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				defer cancel()
				if leaves {
					answer = asked.Remove(ctx, id, "test")
				} else {
					answer = asked.Demote(ctx, id)
				}
			})
			victims := [][]int{{leader}, {leaver}, {rnd.IntN(3)}, {leader, leaver}, rnd.Perm(3)}[rnd.IntN(5)]
			// mostly while it is recorded, or begun
			<-time.After(time.Duration(math.Exp2(9*rnd.Float64())) * time.Millisecond)
			for _, v := range victims {
				c.Crash(v)
			}
			asking.Wait()
			for _, v := range victims {
				<-time.After(time.Duration(rnd.IntN(int(away))))
				var removed *raftstore.RemovedError
				if err := startAgain(c, v); err != nil && !errors.As(err, &removed) {
					t.Fatal(err)
				}
			}
			witness := c.Servers[(leaver+1)%3]
			// With this every entry of an earlier leader is either committed or gone.
			after, err := witness.Commit(limited(t), put("/after", "1"))
			if err != nil {
				t.Fatal(err)
			}
			recorded := wasRecorded(t, witness, id, before.Revision, after.Revision)
			if answer == nil && !recorded {
				t.Error("it was called done and is not recorded")
			}
			c.Await(fmt.Sprintf("what was recorded (%v) is carried out", recorded), func() bool {
				knows := told[leaver].Load() > 0 || c.Servers[leaver] == nil
				return slices.Contains(voters(witness), name) != recorded && (knows || !recorded || !leaves)
			})
			done[recorded]++
			v, err := witness.View(limited(t), raftstore.ViewOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := v.Get("/before"); !ok {
				t.Error("an acknowledged write is lost")
			}
		})
	}
	t.Logf("%d were recorded, %d were not", done[true], done[false])
	if done[true] == 0 {
		t.Error("none was ever recorded")
	}
}

// wasRecorded reports whether a departure or demotion of the server was recorded at any revision
// in between.
func wasRecorded(t *testing.T, s *raftstore.Server, id string, from, to uint64) bool {
	t.Helper()
	for revision := from; revision <= to; revision++ {
		v, err := s.View(limited(t), raftstore.ViewOptions{Revision: revision})
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := v.Get(kv.ReservedPrefix + "members/" + id); ok {
			return true
		}
	}
	return false
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

func TestDemotedStaysWithoutAVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, unhurried)
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
		if err := c.Servers[leader].Promote(ctx, c.Servers[fourth].ID()); !errors.As(err, &refused) ||
			!strings.Contains(err.Error(), "does not reach") {
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

// TestNewcomerGetsItsVoteWhileAMachineIsOff has a member whose address does not even refuse: asking
// it takes all the time that there is for a look at the members.
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
		var mu sync.Mutex
		changes := map[int][]raftstore.MemberChange{} // by server
		edit := func(i int, cfg *raftstore.Config) {
			unhurried(i, cfg)
			disk(i, cfg)
			cfg.CleanAfter = time.Minute
			cfg.OnChange = func(c raftstore.MemberChange) {
				mu.Lock()
				defer mu.Unlock()
				changes[i] = append(changes[i], c)
			}
		}
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
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		by := changes[leader]
		if len(by) < 3 || len(changes) != 1 {
			t.Fatalf("the changes by server: %+v", changes)
		}
		by = by[len(by)-3:]
		name := c.Configs[dead].Name
		if by[0].Change != "promote" || by[0].Name != "s3" || by[1].Change != "expire" || by[1].Name != name ||
			by[2].Change != "remove" || by[2].Name != name ||
			by[2].ID == "" || !strings.HasPrefix(by[2].Why, "it was dead: it has not answered for ") {
			t.Errorf("the last changes: %+v", by)
		}
	})
}

// TestWhyAServerCannotJoin: the error has the reason, and not that the last attempt had no
// time left.
func TestWhyAServerCannotJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 1, nil)
		other, err := raftstore.Open(
			raftstore.Config{Name: "x", InMemory: true, ClusterID: "another", Stream: c.Net.Host("x:1")})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		time.AfterFunc(2900*time.Millisecond, func() { c.Net.Mute(storetest.Addr(0)) })
		var wrong *raftstore.WrongServerError
		if err := other.Join(ctx, []string{storetest.Addr(0)}); !errors.As(err, &wrong) {
			t.Errorf("Join: %v", err)
		}
		c.Net.Heal()
	})
}

// TestAServerThatCannotJoinSaysSo: the log has the reason, though the join may take for ever.
func TestAServerThatCannotJoinSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log syncbuf.Buffer
		s, err := raftstore.Open(raftstore.Config{
			Name: "x", ClusterID: "test", InMemory: true, Stream: new(memnet.Network).Host("x:1"),
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
		defer cancel()
		if err := s.Join(ctx, []string{"nobody:1"}); !errors.Is(err, raftstore.ErrUnavailable) {
			t.Errorf("Join: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if told := strings.Count(log.String(), "cannot become a member"); told != 2 ||
			!strings.Contains(log.String(), "nobody:1") {
			t.Errorf("in 25 seconds it says so %d times: %s", told, log.String())
		}
	})
}

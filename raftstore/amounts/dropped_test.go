package amounts

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/internal/syncbuf"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

func isMember(s *raftstore.Server, id string) bool {
	return slices.ContainsFunc(s.Members(), func(m raftstore.Member) bool { return m.ID == id })
}

// deadNewcomer has a fourth server join that gets no vote, and crash. It returns its number.
func deadNewcomer(t *testing.T, c *storetest.Cluster, edit func(int, *raftstore.Config)) int {
	t.Helper()
	leader, _ := c.Leader()
	newcomer := c.Add(edit)
	c.Net.Cut(storetest.Addr(newcomer), storetest.Addr((leader+1)%3)) // so it cannot have a vote
	c.Start(newcomer)
	if err := c.Servers[newcomer].Join(await.Context(t), []string{storetest.Addr(leader)}); err != nil {
		t.Fatal(err)
	}
	c.Await("it knows that it is a member",
		func() bool { return isMember(c.Servers[newcomer], c.Servers[newcomer].ID()) })
	<-time.After(5 * time.Second)
	if v := voters(c.Servers[leader]); len(v) != 3 {
		t.Fatalf("%v vote", v)
	}
	c.Crash(newcomer)
	c.Net.Heal()
	return newcomer
}

// TestADeadNewcomerIsDropped: a server that dies before it has its vote blocks no other join, and
// is dropped after ten minutes. When it comes back it joins again by itself.
func TestADeadNewcomerIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := onDisk(t)
		c := storetest.NewCluster(t, 3, disk)
		witness := c.Servers[0]
		dead := deadNewcomer(t, c, disk)
		var id string
		for _, m := range witness.Members() {
			if m.Name == c.Configs[dead].Name {
				id = m.ID
			}
		}
		fifth := c.Add(disk)
		c.Start(fifth)
		if err := c.Servers[fifth].Join(await.Context(t), []string{storetest.Addr(0)}); err != nil {
			t.Fatal(err)
		}
		c.Await("the next one has its vote",
			func() bool { return slices.Contains(voters(witness), c.Configs[fifth].Name) })
		leader, _ := c.Leader()
		why := ""
		for _, h := range c.Servers[leader].Status().Health {
			if h.ID == id {
				why = h.Reason
			}
		}
		if !strings.Contains(why, "is dropped when it has not answered for 10m0s") {
			t.Errorf("its health is %q", why)
		}
		<-time.After(9*time.Minute + 30*time.Second)
		if !isMember(witness, id) {
			t.Fatal("it was dropped though it may be restarting")
		}
		c.Await("it is dropped", func() bool { return !isMember(witness, id) })
		c.Await("that is told", func() bool { return witness.Gone()[id].Dropped })
		if gone := witness.Gone()[id]; gone.Name != c.Configs[dead].Name ||
			!strings.Contains(gone.Why, "had no vote yet") {
			t.Errorf("it is told as %+v", gone)
		}
		<-time.After(time.Minute)
		c.Start(dead)
		c.Await("it votes", func() bool {
			return len(voters(witness)) == 5 && slices.Contains(voters(witness), c.Configs[dead].Name)
		})
		c.Await("nobody says that it is gone", func() bool { return len(witness.Gone()) == 0 })
		if c.Servers[dead].ID() != id {
			t.Errorf("it was %s and is %s", id, c.Servers[dead].ID())
		}
	})
}

// TestTheLeaderAloneTakesNobodyForDead: a server that another voter reaches stays, with and without
// a vote, and the status names the fault.
func TestTheLeaderAloneTakesNobodyForDead(t *testing.T) {
	for name, votes := range map[string]bool{"without a vote": false, "with a vote": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				longer := 12 * time.Minute // than it takes to drop a server without a vote
				if votes {
					longer = 3 * time.Minute // than CleanAfter
				}
				edit := func(i int, cfg *raftstore.Config) { unhurried(i, cfg); cfg.CleanAfter = time.Minute }
				c := storetest.NewCluster(t, 3, edit)
				leader, _ := c.Leader()
				cut := c.Add(edit)
				if !votes {
					c.Net.Cut(storetest.Addr(cut), storetest.Addr((leader+1)%3))
				}
				c.Start(cut)
				if err := c.Servers[cut].Join(await.Context(t), []string{storetest.Addr(leader)}); err != nil {
					t.Fatal(err)
				}
				<-time.After(5 * time.Second)
				if got := slices.Contains(voters(c.Servers[leader]), c.Configs[cut].Name); got != votes {
					t.Fatalf("it votes: %v", got)
				}
				c.Net.Cut(storetest.Addr(cut), storetest.Addr(leader))
				<-time.After(longer)
				id, why := c.Servers[cut].ID(), ""
				if now, _ := c.Leader(); now != leader {
					t.Fatalf("server %d leads, and not %d", now, leader)
				}
				for _, h := range c.Servers[leader].Status().Health {
					if h.ID == id {
						why = h.Reason
					}
				}
				if !isMember(c.Servers[leader], id) || !strings.Contains(why, "though s") {
					t.Errorf("it is a member: %v, and its health is %q", isMember(c.Servers[leader], id), why)
				}
				c.Net.Heal()
				c.Await("it votes",
					func() bool { return slices.Contains(voters(c.Servers[leader]), c.Configs[cut].Name) })
			})
		})
	}
}

// TestAServerWithoutAVoteMayBeAway: for some minutes, or for as long as it likes when it was
// demoted.
func TestAServerWithoutAVoteMayBeAway(t *testing.T) {
	needs.AllTests(t)
	synctest.Test(t, func(t *testing.T) {
		disk := onDisk(t)
		c := storetest.NewCluster(t, 3, disk)
		slow := deadNewcomer(t, c, disk)
		for range 2 {
			<-time.After(9 * time.Minute)
			leader, _ := c.Leader()
			c.Net.Cut(storetest.Addr(slow), storetest.Addr((leader+1)%3))
			c.Start(slow)
			<-time.After(10 * time.Second)
			c.Crash(slow)
			c.Net.Heal()
		}
		c.Start(slow)
		c.Await("it votes", func() bool { return len(voters(c.Servers[0])) == 4 })
		id := c.Servers[slow].ID()
		if err := c.Servers[0].Demote(await.Context(t), id); err != nil {
			t.Fatal(err)
		}
		c.Crash(slow)
		<-time.After(11 * time.Minute)
		if !isMember(c.Servers[0], id) {
			t.Error("a server that was demoted is dropped")
		}
	})
}

// TestADroppedServerWhoseNameIsTaken: it gets that reason, and is not let in.
func TestADroppedServerWhoseNameIsTaken(t *testing.T) {
	needs.AllTests(t)
	synctest.Test(t, func(t *testing.T) {
		var log syncbuf.Buffer
		disk := onDisk(t)
		c := storetest.NewCluster(t, 3, disk)
		dead := deadNewcomer(t, c, func(i int, cfg *raftstore.Config) {
			disk(i, cfg)
			cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		})
		<-time.After(11 * time.Minute)
		if len(c.Servers[0].Members()) != 3 {
			t.Fatal("it was not dropped")
		}
		other := c.Add(func(i int, cfg *raftstore.Config) { disk(i, cfg); cfg.Name = c.Configs[dead].Name })
		c.Start(other)
		if err := c.Servers[other].Join(await.Context(t), []string{storetest.Addr(0)}); err != nil {
			t.Fatal(err)
		}
		c.Start(dead)
		<-time.After(time.Minute)
		if isMember(c.Servers[0], c.Servers[dead].ID()) {
			t.Error("two servers have one name")
		}
		if said := log.String(); strings.Count(said, "is not let in again") != 1 ||
			!strings.Contains(said, "another one of its name") {
			t.Errorf("it says %s", said)
		}
	})
}

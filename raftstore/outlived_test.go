package raftstore_test

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

// split is a cluster of three that has lost its quorum, of which one server was recovered. None runs yet.
type split struct {
	*storetest.Cluster
	t        *testing.T
	survivor int
	ahead    time.Duration // by how much its clock is ahead
	old      []int         // the others, whose disks are there yet
	told     []atomic.Pointer[raftstore.Succession]
}

func newSplit(t *testing.T) *split { return newSplitAhead(t, 0) }

func newSplitAhead(t *testing.T, ahead time.Duration) *split {
	t.Helper()
	s := &split{t: t, ahead: ahead, told: make([]atomic.Pointer[raftstore.Succession], 3)}
	disk := onDisk(t)
	s.Cluster = storetest.NewCluster(t, 3, func(i int, cfg *raftstore.Config) {
		disk(i, cfg)
		cfg.OnOutlived = func(o raftstore.Succession) { s.told[i].Store(&o) }
	})
	s.survivor, _ = s.Leader()
	if _, err := s.Servers[s.survivor].Commit(limited(t), put("/before", "1")); err != nil {
		t.Fatal(err)
	}
	<-time.After(10 * time.Second) // so that each has a record of when it was in touch with a leader
	for i := range s.Servers {
		s.Stop(i)
		if i != s.survivor {
			s.old = append(s.old, i)
		}
	}
	<-time.After(time.Minute)
	s.Configs[s.survivor].Now = clockAhead(ahead)
	s.recover(s.survivor, "new")
	<-time.After(10 * time.Second)
	return s
}

// clockAhead returns a clock that is ahead of the others.
func clockAhead(by time.Duration) func() time.Time {
	return func() time.Time { return time.Now().Add(by) }
}

func (s *split) recover(i int, as string) {
	s.t.Helper()
	if err := raftstore.Recover(raftstore.RecoverConfig{Dir: s.Configs[i].Dir, ClusterID: as, Now: s.Configs[i].Now}); err != nil {
		s.t.Fatal(err)
	}
	s.Configs[i].ClusterID = as
}

// outlived waits until an old server has learned that it is one, and makes sure that it does nothing any more.
func (s *split) outlived(i int, heir string) {
	s.t.Helper()
	s.Await("the old server is told", func() bool { return s.told[i].Load() != nil })
	got := s.told[i].Load()
	if got.Cluster != "test" || got.Heir != heir || got.By == "" || got.At.IsZero() {
		s.t.Errorf("server %d is told %+v", i, got)
	}
	server := s.Servers[i]
	var o *raftstore.OutlivedError
	if err := server.Ready(limited(s.t)); !errors.As(err, &o) || !errors.Is(err, raftstore.ErrUnavailable) {
		s.t.Errorf("server %d is ready: %v", i, err)
	}
	if _, err := server.Commit(limited(s.t), put("/old", "1")); err == nil {
		s.t.Errorf("server %d writes", i)
	}
	if _, err := server.View(limited(s.t), raftstore.ViewOptions{Stale: true}); err == nil {
		s.t.Errorf("server %d shows its state", i)
	}
	if status := server.Status(); status.Outlived == nil {
		s.t.Errorf("server %d does not say so in its status: %+v", i, status)
	}
}

// stays makes sure that a restart of an old server changes nothing.
func (s *split) stays(i int) {
	s.t.Helper()
	s.Stop(i)
	cfg := s.Configs[i]
	cfg.Stream = s.Net.Host("elsewhere:1") // where it hears of nobody
	opened, err := raftstore.Open(cfg)
	var o *raftstore.OutlivedError
	if !errors.As(err, &o) || o.Cluster != "test" {
		s.t.Fatalf("it is opened again: %v, %v", opened, err)
	}
	if r, err := raftstore.Inspect(cfg.Dir, nil); err != nil || r.Outlived == nil {
		s.t.Errorf("its directory says %+v, %v", r, err)
	}
	if mark, err := raftstore.Outlived(cfg.Dir); err != nil || mark == nil {
		s.t.Errorf("its mark is %+v, %v", mark, err)
	}
}

// neverLeads fails when one of the servers leads while f runs.
func (s *split) neverLeads(servers []int, f func()) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan struct{}, len(servers))
	for _, i := range servers {
		server := s.Servers[i]
		go func() { // ends with ctx, or with the server
			defer func() { ended <- struct{}{} }()
			if _, term, err := server.AwaitLeadership(ctx); err == nil {
				s.t.Errorf("the old server %d leads in term %d", i, term)
			}
		}()
	}
	f()
	cancel()
	for range servers {
		<-ended
	}
}

// An old majority comes back while the recovered server runs: none of it is ever elected.
func TestOldMajorityIsOutlived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSplit(t)
		s.Start(s.survivor)
		for _, i := range s.old {
			s.Start(i)
		}
		s.neverLeads(s.old, func() {
			for _, i := range s.old {
				s.outlived(i, "new")
			}
			<-time.After(10 * time.Second)
		})
		for _, i := range s.old { // neither has given the other one its vote
			if status := s.Servers[i].Status(); status.LeaderID != "" || status.Role == "leader" {
				t.Errorf("the old server %d follows %q as a %s", i, status.LeaderID, status.Role)
			}
		}
		for _, i := range s.old {
			s.stays(i)
		}
		if _, err := s.Servers[s.survivor].Commit(limited(t), put("/after", "1")); err != nil {
			t.Error(err)
		}
	})
}

// A server asks before it would stand for election.
func TestOldServerAsksFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSplit(t)
		s.Start(s.survivor)
		old := s.old[0]
		s.Configs[old].Timeouts = raftstore.Timeouts{Heartbeat: time.Hour}
		s.Start(old)
		<-time.After(time.Second)
		if held := s.Servers[old].Status().HeldBack; held == nil || held.Heir != "new" {
			t.Errorf("after a second an old server holds back for %v", held)
		}
		s.outlived(old, "new")
	})
}

// An old majority has come back and serves before the recovered server is there.
func TestOldMajorityThatServesIsOutlived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSplit(t)
		for _, i := range s.old {
			s.Start(i)
		}
		if _, err := s.Servers[s.old[0]].Commit(limited(t), put("/meanwhile", "1")); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		s.Start(s.survivor)
		for _, i := range s.old {
			s.outlived(i, "new")
			s.stays(i)
		}
	})
}

// It is no matter by how much the clocks differ: an old majority that was elected soon after the recovery, and well before or after it by the raw times,
// is outlived all the same.
func TestOldMajorityIsOutlivedWhateverTheClocks(t *testing.T) {
	for _, ahead := range []time.Duration{-70 * time.Second, 70 * time.Second, 30 * time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSplitAhead(t, ahead)
				<-time.After(10 * time.Second)
				for _, i := range s.old {
					s.Start(i)
				}
				if _, err := s.Servers[s.old[0]].Commit(limited(t), put("/meanwhile", "1")); err != nil {
					t.Fatal(err)
				}
				<-time.After(2 * time.Minute)
				s.Start(s.survivor)
				for _, i := range s.old {
					s.outlived(i, "new")
				}
				if _, err := s.Servers[s.survivor].Commit(limited(t), put("/after", "1")); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Who was recovered more than once is the heir of all, and all of its members know, also those that joined.
func TestEachAncestorIsOutlived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSplit(t)
		s.Start(s.survivor)
		joins := s.old[0]
		if err := os.RemoveAll(s.Configs[joins].Dir); err != nil {
			t.Fatal(err)
		}
		s.Configs[joins].ClusterID, s.Configs[joins].Bootstrap = "new", false
		s.Start(joins)
		if err := s.Servers[joins].Join(limited(t), []string{storetest.Addr(s.survivor)}); err != nil {
			t.Fatal(err)
		}
		s.Await("two voters", func() bool { return len(voters(s.Servers[joins])) == 2 })
		s.Stop(s.survivor) // the one who was there
		s.Stop(joins)
		<-time.After(10 * time.Second)
		s.recover(joins, "newest")
		<-time.After(10 * time.Second)
		s.Start(joins)
		if a := s.Servers[joins].Ancestors(); len(a) != 2 || a[0].Cluster != "new" || a[0].Heir != "newest" || a[1].Cluster != "test" || a[1].Heir != "new" {
			t.Errorf("its ancestors are %+v", a)
		}
		s.Start(s.old[1])
		s.outlived(s.old[1], "newest")
		// The server that was recovered first is outlived itself.
		s.Start(s.survivor)
		s.Await("the first survivor is told", func() bool { return s.told[s.survivor].Load() != nil })
		if got := s.told[s.survivor].Load(); got.Cluster != "new" || got.Heir != "newest" {
			t.Errorf("it is told %+v", got)
		}
	})
}

// The recovered cluster is given up: an old directory is recovered itself, and serves.
func TestOutlivedServerIsRecovered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSplit(t)
		s.Start(s.survivor)
		back := s.old[0]
		s.Start(back)
		s.outlived(back, "new")
		s.stays(back)
		s.Stop(s.survivor)
		<-time.After(time.Minute)
		s.recover(back, "third")
		if r, err := raftstore.Inspect(s.Configs[back].Dir, nil); err != nil || r.Outlived != nil || len(r.Ancestors) != 2 {
			t.Errorf("its directory says %+v, %v", r, err)
		}
		s.Start(back)
		if _, err := s.Servers[back].Commit(limited(t), put("/third", "1")); err != nil {
			t.Error(err)
		}
		// The one that was given up is told, too, where it meets the third.
		s.Configs[s.survivor].Peers = func() []string { return []string{storetest.Addr(back)} }
		<-time.After(time.Minute)
		s.Start(s.survivor)
		s.Await("the survivor is told", func() bool { return s.told[s.survivor].Load() != nil })
		if got := s.told[s.survivor].Load(); got.Cluster != "new" || got.Heir != "third" {
			t.Errorf("it is told %+v", got)
		}
		if err := s.Servers[back].Ready(limited(t)); err != nil {
			t.Error(err)
		}
	})
}

// mistake is a cluster of which a server was recovered while the others had a leader.
type mistake struct {
	*storetest.Cluster
	t      *testing.T
	wrong  int
	others []int
	told   atomic.Int32
}

func newMistake(t *testing.T, size int) *mistake { return newMistakeAhead(t, size, 0) }

// newMistakeAhead is of a server whose clock is ahead.
func newMistakeAhead(t *testing.T, size int, ahead time.Duration) *mistake {
	t.Helper()
	m := &mistake{t: t}
	disk := onDisk(t)
	m.Cluster = storetest.NewCluster(t, size, func(i int, cfg *raftstore.Config) {
		disk(i, cfg)
		cfg.OnOutlived = func(raftstore.Succession) { m.told.Add(1) }
	})
	leader, _ := m.Leader()
	m.wrong = (leader + 1) % size
	for i := range size - 1 {
		m.others = append(m.others, (m.wrong+1+i)%size)
	}
	<-time.After(time.Minute)
	m.Stop(m.wrong)
	<-time.After(10 * time.Second)
	cfg := &m.Configs[m.wrong]
	cfg.Now = clockAhead(ahead)
	if err := raftstore.Recover(raftstore.RecoverConfig{Dir: cfg.Dir, ClusterID: "mistake", Now: cfg.Now}); err != nil {
		t.Fatal(err)
	}
	cfg.ClusterID = "mistake"
	<-time.After(10 * time.Second)
	return m
}

// goesOn makes sure that nobody has stopped, and that all serve.
func (m *mistake) goesOn(when string) {
	m.t.Helper()
	<-time.After(30 * time.Second)
	if n := m.told.Load(); n > 0 {
		m.t.Fatalf("%s: %d servers of a cluster that was well have stopped", when, n)
	}
	for _, i := range m.others {
		if err := m.Servers[i].Ready(limited(m.t)); err != nil {
			m.t.Errorf("%s, server %d: %v", when, i, err)
		}
	}
	if _, err := m.Servers[m.others[0]].Commit(limited(m.t), put("/on", when)); err != nil {
		m.t.Errorf("%s: %v", when, err)
	}
}

// Of three servers one is recovered by mistake. What is left of the cluster goes on: when it meets the other one, when one
// is started again, and when all are, also when they were before they met it.
func TestRecoveryByMistakeOfOneOfThree(t *testing.T) {
	for name, before := range map[string]func(m *mistake){
		"met at once": func(*mistake) {},
		"all rolled before": func(m *mistake) {
			for _, i := range m.others {
				m.Stop(i)
				m.Start(i)
				<-time.After(20 * time.Second)
			}
		},
		"power failed before": func(m *mistake) {
			for _, i := range m.others {
				m.Stop(i)
			}
			<-time.After(time.Hour)
			for _, i := range m.others {
				m.Start(i)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMistake(t, 3)
				before(m)
				m.Start(m.wrong)
				m.goesOn("met")
				for _, i := range m.others {
					m.Stop(i)
					m.Start(i)
					m.goesOn("one started again")
				}
				for _, i := range m.others {
					m.Stop(i)
				}
				<-time.After(time.Hour)
				for _, i := range m.others {
					m.Start(i)
					<-time.After(10 * time.Second)
				}
				m.goesOn("all started again")
			})
		})
	}
}

// The same, whatever the clock of the server says that was recovered by mistake: also while its cluster has not written down yet that it is no heir.
func TestRecoveryByMistakeWhateverTheClocks(t *testing.T) {
	for _, ahead := range []time.Duration{-70 * time.Second, 70 * time.Second, 30 * time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMistakeAhead(t, 3, ahead)
				m.Start(m.wrong)
				m.goesOn("met")
				for _, i := range m.others {
					if r := m.Servers[i].Status().Rival; m.Servers[i].Status().Role == "leader" && (r == nil || r.Heir != "mistake") {
						t.Errorf("server %d leads, and tells of %+v", i, r)
					}
				}
				for _, i := range m.others {
					m.Stop(i)
				}
				<-time.After(time.Minute)
				for _, i := range m.others {
					m.Start(i)
				}
				m.goesOn("all started again")
			})
		})
	}
}

// A server that was away has an old configuration: of that, a majority did not run, though the cluster was well. It does not leave that for good
// because nobody else answers it for a moment; nor at all, when it can find servers that it does not know yet.
func TestOldConfigurationMakesNoMajority(t *testing.T) {
	for _, finds := range []bool{false, true} {
		t.Run(map[bool]string{false: "cut off for a moment", true: "finds the new ones"}[finds], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var told atomic.Int32
				disk := onDisk(t)
				with := func(i int, cfg *raftstore.Config) {
					disk(i, cfg)
					cfg.OnOutlived = func(raftstore.Succession) { told.Add(1) }
				}
				c := storetest.NewCluster(t, 3, with)
				leader, _ := c.Leader()
				away, wrong := (leader+1)%3, (leader+2)%3
				c.Stop(away)
				for range 2 {
					i := c.Add(with)
					c.Start(i)
					if err := c.Servers[i].Join(limited(t), []string{storetest.Addr(leader)}); err != nil {
						t.Fatal(err)
					}
				}
				c.Await("five voters", func() bool { return len(voters(c.Servers[leader])) == 5 })
				<-time.After(time.Minute)
				c.Stop(wrong)
				<-time.After(10 * time.Second)
				if err := raftstore.Recover(raftstore.RecoverConfig{Dir: c.Configs[wrong].Dir, ClusterID: "mistake"}); err != nil {
					t.Fatal(err)
				}
				c.Configs[wrong].ClusterID = "mistake"
				<-time.After(time.Minute)
				c.Start(wrong)
				for _, i := range []int{leader, 3, 4} {
					if !finds || i == leader {
						c.Net.Cut(storetest.Addr(away), storetest.Addr(i))
					}
				}
				if finds {
					c.Configs[away].Peers = func() []string { return []string{storetest.Addr(3)} }
				}
				c.Start(away)
				<-time.After(6 * time.Second)
				if held := c.Servers[away].Status().HeldBack; (held == nil) != finds {
					t.Errorf("it holds back for %v", held)
				}
				<-time.After(map[bool]time.Duration{true: time.Minute}[finds])
				c.Net.Heal()
				c.Await("it follows", func() bool { return c.Servers[away].Ready(limited(t)) == nil })
				<-time.After(time.Minute)
				if told.Load() > 0 {
					t.Error("a server of a cluster that was well has stopped")
				}
			})
		})
	}
}

// The same, of five, of which four are started one after the other.
func TestRecoveryByMistakeAndAStartOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMistake(t, 5)
		for _, i := range m.others {
			m.Stop(i)
		}
		m.Start(m.wrong)
		for _, i := range m.others {
			m.Start(i)
			<-time.After(30 * time.Second)
		}
		m.goesOn("all started again")
	})
}

// A server that cannot know whether its cluster was well, since its record was lost and nobody else runs, holds back: it is
// neither stopped nor marked, and leads nobody; and takes part when one who knows is back.
func TestInDoubtAServerHoldsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMistake(t, 5)
		for _, i := range m.others {
			m.Stop(i)
		}
		m.Start(m.wrong)
		forgetful, knows := m.others[:3], m.others[3]
		for _, i := range forgetful { // a majority
			if err := os.Remove(m.Configs[i].Dir + "/presence.json"); err != nil {
				t.Fatal(err)
			}
			m.Start(i)
		}
		<-time.After(5 * time.Minute)
		for _, i := range forgetful {
			if s := m.Servers[i].Status(); s.HeldBack == nil || s.HeldBack.Heir != "mistake" || s.LeaderID != "" || s.Outlived != nil {
				t.Errorf("server %d: held back by %v, led by %q, outlived by %v", i, s.HeldBack, s.LeaderID, s.Outlived)
			}
			if err := m.Servers[i].Ready(limited(t)); !errors.Is(err, raftstore.ErrUnavailable) {
				t.Errorf("server %d is ready: %v", i, err)
			}
			if mark, err := raftstore.Outlived(m.Configs[i].Dir); mark != nil || err != nil {
				t.Errorf("server %d is marked: %v, %v", i, mark, err)
			}
		}
		m.Start(knows)
		m.goesOn("one who knows is back")
	})
}

// A server of the minority is recovered by mistake, and comes back at its address: the cluster, which is well, goes on,
// also when another one leads, when one of its servers is started again, and when all are.
func TestRecoveryByMistakeStopsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told atomic.Int32
		disk := onDisk(t)
		c := storetest.NewCluster(t, 5, func(i int, cfg *raftstore.Config) {
			disk(i, cfg)
			cfg.OnOutlived = func(raftstore.Succession) { told.Add(1) }
		})
		leader, _ := c.Leader()
		wrong := (leader + 1) % 5
		<-time.After(time.Minute)
		c.Stop(wrong)
		<-time.After(time.Second)
		if err := raftstore.Recover(raftstore.RecoverConfig{Dir: c.Configs[wrong].Dir, ClusterID: "mistake"}); err != nil {
			t.Fatal(err)
		}
		c.Configs[wrong].ClusterID = "mistake"
		c.Start(wrong)
		c.Await("the leader tells of it", func() bool {
			r := c.Servers[leader].Status().Rival
			return r != nil && r.Heir == "mistake" && r.Address == storetest.Addr(wrong)
		})
		others := []int{leader, (leader + 2) % 5, (leader + 3) % 5, (leader + 4) % 5}
		for round := range 3 {
			for _, i := range others[1:] {
				c.Stop(i)
				c.Start(i)
				<-time.After(10 * time.Second)
			}
			if err := c.Servers[leader].TransferLeadership(limited(t), c.Servers[others[1]].ID()); err != nil {
				t.Fatal(err)
			}
			<-time.After(20 * time.Second)
			for _, i := range others {
				if err := c.Servers[i].Ready(limited(t)); err != nil {
					t.Errorf("round %d, server %d: %v", round, i, err)
				}
			}
			if err := c.Servers[others[1]].TransferLeadership(limited(t), c.Servers[leader].ID()); err != nil {
				t.Fatal(err)
			}
		}
		// Power fails, for all of them.
		for _, i := range others {
			c.Stop(i)
		}
		for _, i := range others {
			c.Start(i)
			<-time.After(30 * time.Second) // too few for a leader at first
		}
		for _, i := range others {
			if err := c.Servers[i].Ready(limited(t)); err != nil {
				t.Errorf("after a start of all, server %d: %v", i, err)
			}
		}
		if n := told.Load(); n > 0 {
			t.Errorf("%d servers of a cluster that was well have stopped", n)
		}
	})
}

// What calls itself an ancestor in a backup is none.
func TestRestoreBringsNoAncestors(t *testing.T) {
	c := storetest.NewCluster(t, 1, nil)
	items := func(yield func(*raftstore.Item) error) error {
		return errors.Join(
			yield(&raftstore.Item{Key: "\x00raftstore/ancestors/victim", Value: []byte(`{"cluster":"victim","heir":"test"}`)}),
			yield(&raftstore.Item{Key: "/a", Value: []byte("1")}),
		)
	}
	if _, err := c.Servers[0].Restore(limited(t), items, raftstore.RestoreOptions{}); err != nil {
		t.Fatal(err)
	}
	if v, err := c.Servers[0].View(limited(t), raftstore.ViewOptions{}); err != nil || v.Count("/", "") != 1 {
		t.Fatalf("the restore: %v", err)
	}
	if a := c.Servers[0].Ancestors(); len(a) != 0 {
		t.Errorf("its ancestors are %+v", a)
	}
}

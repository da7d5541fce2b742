package raftstore_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

// split is a cluster of three that has lost its quorum, of which one server was recovered. None
// runs yet.
type split struct {
	*storetest.Cluster
	t        *testing.T
	survivor int
	old      []int // the servers that are not recovered, whose disks are there yet
	told     []atomic.Pointer[raftstore.Succession]
}

// newCluster is one of three, all of which run.
func newCluster(t *testing.T, edit func(i int, cfg *raftstore.Config)) *split {
	t.Helper()
	s := &split{t: t, told: make([]atomic.Pointer[raftstore.Succession], 3)}
	disk := onDisk(t)
	s.Cluster = storetest.NewCluster(t, 3, func(i int, cfg *raftstore.Config) {
		disk(i, cfg)
		if edit != nil {
			edit(i, cfg)
		}
		cfg.OnSuperseded = func(o raftstore.Succession) { s.told[i].Store(&o) }
	})
	if _, err := s.Servers[0].Commit(limited(t), put("/before", "1")); err != nil {
		t.Fatal(err)
	}
	return s
}

func newSplit(t *testing.T) *split {
	t.Helper()
	s := newCluster(t, nil)
	s.survivor, _ = s.Leader()
	for i := range s.Servers {
		s.Stop(i)
		if i != s.survivor {
			s.old = append(s.old, i)
		}
	}
	s.recover(s.survivor, "new")
	return s
}

func (s *split) recover(i int, as string) {
	s.t.Helper()
	if err := raftstore.Recover(raftstore.RecoverConfig{Dir: s.Configs[i].Dir, ClusterID: as}); err != nil {
		s.t.Fatal(err)
	}
	s.Configs[i].ClusterID = as
}

// superseded waits until an old server has learned that it is one, and makes sure that it does
// nothing any more.
func (s *split) superseded(i int, successor string) {
	s.t.Helper()
	s.Await("the old server is told", func() bool { return s.told[i].Load() != nil })
	got := s.told[i].Load()
	if got.Cluster != "test" || got.Successor != successor || got.By == "" || got.At.IsZero() {
		s.t.Errorf("server %d is told %+v", i, got)
	}
	server := s.Servers[i]
	var o *raftstore.SupersededError
	if err := server.Ready(limited(s.t)); !errors.As(err, &o) || !errors.Is(err, raftstore.ErrUnavailable) {
		s.t.Errorf("server %d is ready: %v", i, err)
	}
	if _, err := server.Commit(limited(s.t), put("/old", "1")); err == nil {
		s.t.Errorf("server %d writes", i)
	}
	if _, err := server.View(limited(s.t), raftstore.ViewOptions{Stale: true}); err == nil {
		s.t.Errorf("server %d shows its state", i)
	}
	if status := server.Status(); status.Superseded == nil {
		s.t.Errorf("server %d does not say so in its status: %+v", i, status)
	}
}

// stays makes sure that a restart of an old server changes nothing.
func (s *split) stays(i int) {
	s.t.Helper()
	s.Stop(i)
	cfg := s.Configs[i]
	cfg.Stream = s.Net.Host("elsewhere:1") // where it hears no other
	opened, err := raftstore.Open(cfg)
	var o *raftstore.SupersededError
	if !errors.As(err, &o) || o.Cluster != "test" {
		s.t.Fatalf("it is opened again: %v, %v", opened, err)
	}
	if r, err := raftstore.Inspect(cfg.Dir, nil); err != nil || r.Superseded == nil {
		s.t.Errorf("its directory says %+v, %v", r, err)
	}
	if mark, err := raftstore.Superseded(cfg.Dir); err != nil || mark == nil {
		s.t.Errorf("its mark is %+v, %v", mark, err)
	}
	if ended, err := raftstore.Ended(cfg.Dir); err != nil || !ended {
		s.t.Errorf("it has ended: %t, %v", ended, err)
	}
}

// serve makes sure that servers are ready and take writes, and that none of them has learned of
// a successor.
func (s *split) serve(when string, servers ...int) {
	s.t.Helper()
	for _, i := range servers {
		if told := s.told[i].Load(); told != nil {
			s.t.Fatalf("%s: server %d is told %+v", when, i, told)
		}
		if _, err := s.Servers[i].Commit(limited(s.t), put("/serves", when)); err != nil {
			s.t.Errorf("%s: server %d: %v", when, i, err)
		}
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
func TestOldMajorityIsSuperseded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSplit(t)
		s.Start(s.survivor)
		for _, i := range s.old {
			s.Start(i)
		}
		s.neverLeads(s.old, func() {
			for _, i := range s.old {
				s.superseded(i, "new")
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
		s.serve("after", s.survivor)
	})
}

// A server asks before it would campaign.
func TestOldServerAsksFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSplit(t)
		s.Start(s.survivor)
		old := s.old[0]
		s.Configs[old].Timeouts = raftstore.Timeouts{Heartbeat: time.Hour}
		began := time.Now()
		s.Start(old)
		s.superseded(old, "new")
		if after := time.Since(began); after > time.Second { // in virtual time
			t.Errorf("it was told after %v", after)
		}
	})
}

// An old majority has come back and serves before the recovered server is there.
func TestOldMajorityThatServesIsSuperseded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSplit(t)
		for _, i := range s.old {
			s.Start(i)
		}
		s.serve("meanwhile", s.old...)
		<-time.After(time.Minute)
		s.Start(s.survivor)
		for _, i := range s.old {
			s.superseded(i, "new")
			s.stays(i)
		}
		s.serve("after", s.survivor)
	})
}

// A cluster that was recovered more than once is the successor of all before it, and all of its
// members know, also those that joined.
func TestEachPredecessorIsSuperseded(t *testing.T) {
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
		s.Stop(s.survivor) // the one that was there
		s.Stop(joins)
		s.recover(joins, "newest")
		s.Start(joins)
		if p := s.Servers[joins].Predecessors(); len(p) != 2 || p[0].Cluster != "new" || p[0].Successor != "newest" ||
			p[1].Cluster != "test" || p[1].Successor != "new" {
			t.Errorf("its predecessors are %+v", p)
		}
		s.Start(s.old[1])
		s.superseded(s.old[1], "newest")
		// The server that was recovered first is superseded itself.
		s.Start(s.survivor)
		s.Await("the first survivor is told", func() bool { return s.told[s.survivor].Load() != nil })
		if got := s.told[s.survivor].Load(); got.Cluster != "new" || got.Successor != "newest" {
			t.Errorf("it is told %+v", got)
		}
	})
}

// The recovered cluster is given up: an old directory is recovered itself, and serves.
func TestSupersededServerIsRecovered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSplit(t)
		s.Start(s.survivor)
		back := s.old[0]
		s.Start(back)
		s.superseded(back, "new")
		s.stays(back)
		s.Stop(s.survivor)
		s.recover(back, "third")
		if r, err := raftstore.Inspect(s.Configs[back].Dir, nil); err != nil || r.Superseded != nil ||
			len(r.Predecessors) != 2 {
			t.Errorf("its directory says %+v, %v", r, err)
		}
		s.Start(back)
		s.told[back].Store(nil)
		s.serve("the third", back)
		// The server that was given up learns of it, too, where it meets the third.
		s.Configs[s.survivor].Peers = func() []string { return []string{storetest.Addr(back)} }
		s.Start(s.survivor)
		s.Await("the survivor is told", func() bool { return s.told[s.survivor].Load() != nil })
		if got := s.told[s.survivor].Load(); got.Cluster != "new" || got.Successor != "third" {
			t.Errorf("it is told %+v", got)
		}
		s.serve("beside the second", back)
	})
}

// A server of a cluster that is well is recovered by mistake: when it comes to its address, it
// alone goes on. Nothing that the others have acknowledged is lost: one of them is recovered, and
// that cluster is the last one.
func TestRecoveryByMistakeIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCluster(t, nil)
		leader, _ := s.Leader()
		wrong, others := (leader+1)%3, []int{leader, (leader + 2) % 3}
		s.Stop(wrong)
		s.serve("without it", others...)
		s.recover(wrong, "mistake")
		s.Start(wrong)
		for _, i := range others {
			s.superseded(i, "mistake")
			s.stays(i)
		}
		s.Stop(wrong)
		s.recover(leader, "right")
		s.Start(leader)
		s.told[leader].Store(nil)
		if v, err := s.Servers[leader].View(limited(t), raftstore.ViewOptions{}); err != nil {
			t.Error(err)
		} else if item, ok := v.Get("/serves"); !ok || string(item.Value) != "without it" {
			t.Errorf("what was acknowledged is %+v", item)
		}
		s.Start(wrong)
		s.serve("in the end", leader)
	})
}

// A copy of a disk is recovered at another address, as for a drill. It may even call the servers of
// the cluster: none stops.
func TestDrillStopsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCluster(t, unhurried)
		s.Stop(1)
		dir := filepath.Join(t.TempDir(), "copy")
		if err := os.CopyFS(dir, os.DirFS(s.Configs[1].Dir)); err != nil {
			t.Fatal(err)
		}
		s.Start(1)
		if err := raftstore.Recover(raftstore.RecoverConfig{Dir: dir, ClusterID: "drill"}); err != nil {
			t.Fatal(err)
		}
		cfg := s.Configs[1]
		cfg.Dir, cfg.ClusterID, cfg.Stream = dir, "drill", s.Net.Host("elsewhere:1")
		cfg.Peers = func() []string { return []string{storetest.Addr(0), storetest.Addr(1), storetest.Addr(2)} }
		cfg.OnSuperseded = func(o raftstore.Succession) { t.Errorf("the drill is told %+v", o) }
		drill, err := raftstore.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer drill.Close()
		<-time.After(10 * time.Minute)
		s.serve("beside the drill", 0, 1, 2)
		if _, err := drill.Commit(limited(t), put("/drill", "1")); err != nil {
			t.Errorf("the drill: %v", err)
		}
	})
}

// A new cluster begins with a backup, at the address of one of three servers. The two others, which
// have come back and serve, stop when they meet it.
func TestOldMajorityStopsBesideARebuiltCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCluster(t, nil)
		for i := range s.Servers {
			s.Stop(i)
		}
		for _, i := range []int{1, 2} {
			s.Start(i)
		}
		s.serve("meanwhile", 1, 2)
		s.Configs[0].Dir, s.Configs[0].ClusterID, s.Configs[0].Bootstrap = filepath.Join(t.TempDir(), "rebuilt"),
			"rebuilt", true
		s.Start(0)
		if err := s.Servers[0].Succeed(limited(t), "test"); err != nil {
			t.Fatal(err)
		}
		items := func(yield func(*raftstore.Item) error) error {
			return yield(&raftstore.Item{Key: "/before", Value: []byte("1")})
		}
		if _, err := s.Servers[0].Restore(limited(t), items, raftstore.RestoreOptions{AtLeast: 1 << 30}); err != nil {
			t.Fatal(err)
		}
		for _, i := range []int{1, 2} {
			s.superseded(i, "rebuilt")
			s.stays(i)
		}
		s.serve("rebuilt", 0)
		s.Stop(0) // it stays the successor
		s.Start(0)
		s.serve("started again", 0)
		if p := s.Servers[0].Predecessors(); len(p) != 1 || p[0].Cluster != "test" || p[0].Successor != "rebuilt" ||
			p[0].By != s.Servers[0].ID() {
			t.Errorf("its predecessors are %+v", p)
		}
	})
}

// The record that earlier versions kept of when a server had a leader does no harm, whatever is in
// it, and goes.
func TestOldRecordsAreRemoved(t *testing.T) {
	c := storetest.NewCluster(t, 1, onDisk(t))
	c.Stop(0)
	for _, name := range []string{"presence.json", "presence.json.spare"} {
		if err := os.WriteFile(filepath.Join(c.Configs[0].Dir, name), []byte(`{"format": 2, "clus`),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.Start(0)
	if _, err := c.Servers[0].Commit(limited(t), put("/a", "1")); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(c.Configs[0].Dir, "presence*")); err != nil || len(left) > 0 {
		t.Errorf("there are %q yet, %v", left, err)
	}
}

// A predecessor that a backup names is none; nor is the cluster of a backup that is restored into
// one that runs.
func TestRestoreBringsNoPredecessors(t *testing.T) {
	c := storetest.NewCluster(t, 1, nil)
	items := func(yield func(*raftstore.Item) error) error {
		return errors.Join(
			yield(
				&raftstore.Item{Key: "\x00raftstore/ancestors/victim",
					Value: []byte(`{"cluster":"victim","heir":"test"}`)}),
			yield(&raftstore.Item{Key: "/a", Value: []byte("1")}),
		)
	}
	if _, err := c.Servers[0].Restore(limited(t), items, raftstore.RestoreOptions{}); err != nil {
		t.Fatal(err)
	}
	if v, err := c.Servers[0].View(limited(t), raftstore.ViewOptions{}); err != nil || v.Count("/", "") != 1 {
		t.Fatalf("the restore: %v", err)
	}
	if p := c.Servers[0].Predecessors(); len(p) != 0 {
		t.Errorf("its predecessors are %+v", p)
	}
}

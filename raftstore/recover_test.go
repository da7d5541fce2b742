package raftstore_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/internal/syncbuf"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/mvcc"
	"github.com/barque/barque/raftstore/storetest"
)

// lostQuorum writes to three servers and to two of them more, and stops all. It returns the
// directories.
func lostQuorum(t *testing.T, logStore string) (c *storetest.Cluster, dirs []string, acknowledged uint64) {
	t.Helper()
	disk := onDisk(t)
	c = storetest.NewCluster(t, 3, func(i int, cfg *raftstore.Config) { disk(i, cfg); cfg.LogStore = logStore })
	leader, _ := c.Leader()
	ctx := limited(t)
	for i := range 120 { // over some snapshots
		if _, err := c.Servers[i%3].Commit(ctx, put(fmt.Sprintf("/k%d", i), "v")); err != nil {
			t.Fatal(err)
		}
		if i == 60 {
			for _, s := range c.Servers {
				if err := s.Snapshot(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	behind := (leader + 1) % 3
	c.Stop(behind)
	r, err := c.Servers[leader].Commit(ctx, put("/late", "v"))
	if err != nil {
		t.Fatal(err)
	}
	for i, cfg := range c.Configs {
		c.Stop(i)
		dirs = append(dirs, cfg.Dir)
	}
	// The one that is behind comes first.
	dirs[0], dirs[behind] = dirs[behind], dirs[0]
	c.Configs[0], c.Configs[behind] = c.Configs[behind], c.Configs[0]
	return c, dirs, r.Revision
}

func TestRecover(t *testing.T) {
	for _, logStore := range []string{"boltdb", "wal"} {
		t.Run(logStore, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, dirs, acknowledged := lostQuorum(t, logStore)
				var reports []*raftstore.Report
				for _, dir := range dirs {
					r, err := raftstore.Inspect(dir, nil)
					if err != nil {
						t.Fatal(err)
					}
					if len(r.Members) != 3 || r.ClusterID != "test" || r.Keys < 60 || r.Term == 0 ||
						r.SnapshotIndex == 0 {
						t.Errorf("%+v", r)
					}
					reports = append(reports, r)
				}
				best := reports[1]
				if reports[2].Newer(best) {
					best = reports[2]
				}
				if best.Keys != 121 || !best.Newer(reports[0]) || reports[0].Newer(best) ||
					best.Revision < acknowledged || reports[0].Revision >= acknowledged {
					t.Errorf("the server that is behind: %+v; the best: %+v", reports[0], best)
				}
				if err := raftstore.Recover(raftstore.RecoverConfig{Dir: best.Dir, ClusterID: "new"}); err != nil {
					t.Fatal(err)
				}
				if err := raftstore.Recover(raftstore.RecoverConfig{Dir: best.Dir, ClusterID: "new"}); err != nil {
					t.Errorf("again: %v", err)
				}
				survives := 0
				for i, cfg := range c.Configs {
					if cfg.Dir == best.Dir {
						survives = i
					}
				}
				checkRecovered(t, c, survives, acknowledged, best.StateHash)
			})
		})
	}
}

// checkRecovered starts the survivor, one of its old companions, and a new one.
func checkRecovered(t *testing.T, c *storetest.Cluster, survives int, acknowledged uint64, hash string) {
	t.Helper()
	ctx := limited(t)
	c.Configs[survives].ClusterID = "new"
	c.Start(survives)
	s := c.Servers[survives]
	if m := s.Members(); len(m) != 1 || m[0].ID != s.ID() {
		t.Fatalf("the members are %+v", m)
	}
	v, err := s.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := inheritedHash(t, s); got != hash || v.Count("/", "") != 121 {
		t.Errorf("%d keys with the hash %s, want 121 with %s", v.Count("/", ""), got, hash)
	}
	if v.Revision() < acknowledged+1<<20 {
		t.Errorf("revision %d is not far above %d", v.Revision(), acknowledged)
	}
	if _, err := s.Watch(raftstore.WatchOptions{Prefix: "/", After: acknowledged + 1000}); !errors.Is(err,
		raftstore.ErrCompacted) {
		t.Errorf("a watcher of a revision that was lost: %v, want ErrCompacted", err)
	}
	// An old member: no other hears it, and it hears no other.
	old := (survives + 1) % 3
	var log syncbuf.Buffer
	c.Configs[old].Logger = slog.New(slog.NewTextHandler(&log, nil))
	c.Start(old)
	c.Await("the old member is told",
		func() bool { return strings.Contains(log.String(), "goes on in place of this server's") })
	if lead, ok := c.Servers[old].Leader(); ok {
		t.Errorf("the old member follows %+v", lead)
	}
	c.Stop(old)
	// As a new one it joins.
	if err := os.RemoveAll(c.Configs[old].Dir); err != nil {
		t.Fatal(err)
	}
	c.Configs[old].ClusterID, c.Configs[old].Bootstrap = "new", false
	c.Start(old)
	if err := c.Servers[old].Join(ctx, []string{storetest.Addr(survives)}); err != nil {
		t.Fatal(err)
	}
	c.Await("two voters", func() bool { return len(voters(s)) == 2 })
	if v, err := c.Servers[old].View(ctx, raftstore.ViewOptions{}); err != nil || v.Count("/", "") != 121 {
		t.Errorf("%v, %v", v, err)
	}
}

// inheritedHash is the hash of the state that a server had before it was recovered: without the
// item that records the recovery.
func inheritedHash(t *testing.T, s *raftstore.Server) string {
	t.Helper()
	item, told, err := s.Get(limited(t), "\x00raftstore/ancestors/test")
	if err != nil || !told {
		t.Fatalf("nothing tells of the recovery: %v", err)
	}
	all, err := strconv.ParseUint(s.Status().StateHash, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%016x", all-mvcc.Hash(&item))
}

// A recovery that dies at any step is finished by a second one, and the directory is not opened in
// between.
func TestRecoverSurvivesCrashes(t *testing.T) {
	for name, break_ := range map[string]func(*raftstore.RecoverConfig){
		"before the snapshot": func(cfg *raftstore.RecoverConfig) {
			cfg.WrapSnapshots = func(s raft.SnapshotStore) raft.SnapshotStore { return &brokenSnapshots{s, false} }
		},
		"in the snapshot": func(cfg *raftstore.RecoverConfig) {
			cfg.WrapSnapshots = func(s raft.SnapshotStore) raft.SnapshotStore { return &brokenSnapshots{s, true} }
		},
		"before the log is emptied": func(cfg *raftstore.RecoverConfig) {
			cfg.WrapLog = func(s raftstore.LogStore) raftstore.LogStore { return brokenLog{s} }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, dirs, _ := lostQuorum(t, "boltdb")
				before, err := raftstore.Inspect(dirs[0], nil)
				if err != nil {
					t.Fatal(err)
				}
				cfg := raftstore.RecoverConfig{Dir: dirs[0], ClusterID: "new"}
				broken := cfg
				break_(&broken)
				if err := raftstore.Recover(broken); !errors.Is(err, errCrash) &&
					(err == nil || !strings.Contains(err.Error(), errCrash.Error())) {
					t.Fatalf("the crash: %v", err)
				}
				<-time.After(time.Second) // a second attempt is later
				open := c.Configs[0]
				open.Stream = c.Net.Host("x:1")
				if s, err := raftstore.Open(open); err == nil ||
					!strings.Contains(err.Error(), "in the middle of a recovery") {
					t.Fatalf("opened in the middle: %v, %v", s, err)
				}
				if err := raftstore.Recover(raftstore.RecoverConfig{Dir: dirs[0], ClusterID: "other"}); err == nil ||
					!strings.Contains(err.Error(), "finish that one") {
					t.Fatalf("another recovery in the middle of one: %v", err)
				}
				if err := raftstore.Recover(cfg); err != nil {
					t.Fatal(err)
				}
				after, err := raftstore.Inspect(dirs[0], nil)
				if err != nil {
					t.Fatal(err)
				}
				if after.ClusterID != "new" || after.Keys != before.Keys+1 || len(after.Predecessors) != 1 ||
					len(after.Members) != 1 || after.Revision <= before.Revision {
					t.Errorf("before %+v, after %+v", before, after)
				}
				c.Configs[0].ClusterID = "new"
				c.Start(0)
				if got := inheritedHash(t, c.Servers[0]); got != before.StateHash {
					t.Errorf("what it had has the hash %s, and had %s", got, before.StateHash)
				}
			})
		})
	}
}

var errCrash = errors.New("the process dies here")

type brokenSnapshots struct {
	raft.SnapshotStore
	late bool
}

func (b *brokenSnapshots) Create(
	v raft.SnapshotVersion, index, term uint64, c raft.Configuration, at uint64, trans raft.Transport,
) (raft.SnapshotSink, error) {
	if !b.late {
		return nil, errCrash
	}
	sink, err := b.SnapshotStore.Create(v, index, term, c, at, trans)
	return &brokenSink{sink}, err
}

type brokenSink struct{ raft.SnapshotSink }

func (b *brokenSink) Write([]byte) (int, error) { return 0, errCrash }

type brokenLog struct{ raftstore.LogStore }

func (brokenLog) DeleteRange(uint64, uint64) error { return errCrash }

func TestRecoverRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, dirs, _ := lostQuorum(t, "boltdb")
		if _, err := raftstore.Inspect(t.TempDir(), nil); err == nil ||
			!strings.Contains(err.Error(), "not the directory of a server") {
			t.Errorf("an empty directory: %v", err)
		}
		if err := os.WriteFile(filepath.Join(dirs[0], "quarantine.json"), []byte(`{"reason":"it differs"}`),
			0o600); err != nil {
			t.Fatal(err)
		}
		if err := raftstore.Recover(raftstore.RecoverConfig{Dir: dirs[0], ClusterID: "new"}); err == nil ||
			!strings.Contains(err.Error(), "known to be wrong") {
			t.Errorf("a server in quarantine: %v", err)
		}
		if r, err := raftstore.Inspect(dirs[0], nil); err != nil || r.Quarantined != "it differs" {
			t.Errorf("its report: %+v, %v", r, err)
		}
	})
}

// TestRecoveredServerKeepsItsVote recovers a server that the old cluster had left without a vote.
func TestRecoveredServerKeepsItsVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := onDisk(t)
		c := storetest.NewCluster(t, 3, disk)
		leader, _ := c.Leader()
		survivor, other := (leader+1)%3, (leader+2)%3
		id := c.Servers[survivor].ID()
		if err := c.Servers[leader].Demote(limited(t), id); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Servers[survivor].Commit(limited(t), put("/a", "1")); err != nil { // so that it has all of it
			t.Fatal(err)
		}
		if _, err := c.Servers[survivor].View(limited(t), raftstore.ViewOptions{}); err != nil {
			t.Fatal(err)
		}
		for i := range c.Servers {
			c.Stop(i)
		}
		if err := raftstore.Recover(
			raftstore.RecoverConfig{Dir: c.Configs[survivor].Dir, ClusterID: "new"}); err != nil {
			t.Fatal(err)
		}
		c.Configs[survivor].ClusterID = "new"
		c.Start(survivor)
		if err := os.RemoveAll(c.Configs[other].Dir); err != nil {
			t.Fatal(err)
		}
		c.Configs[other].ClusterID, c.Configs[other].Bootstrap = "new", false
		c.Start(other)
		if err := c.Servers[other].Join(limited(t), []string{storetest.Addr(survivor)}); err != nil {
			t.Fatal(err)
		}
		c.Await("two voters", func() bool { return len(voters(c.Servers[other])) == 2 })
		<-time.After(time.Minute)
		if v := voters(c.Servers[other]); len(v) != 2 {
			t.Errorf("%v vote: the survivor lost its vote by what the old cluster had decided", v)
		}
	})
}

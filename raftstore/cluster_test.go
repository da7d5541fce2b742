package raftstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

func put(key, value string) raftstore.Txn {
	return raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: key, Value: []byte(value)}}}
}

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// settled commits an idempotent txn until its outcome is known. Real servers that get next to no
// CPU time may elect another leader at any moment, and then the outcome of a write can be unknown.
func settled(ctx context.Context, s *raftstore.Server, txn raftstore.Txn) error {
	for {
		if _, err := s.Commit(ctx, txn); !errors.Is(err, raftstore.ErrUnknownOutcome) || ctx.Err() != nil {
			return err
		}
	}
}

// unhurried gives the servers long time-outs. It is for tests in which minutes pass and that are
// not about the loss of a leader: with storetest's time-outs most of their CPU time goes into a
// hundred heartbeats a second.
func unhurried(_ int, cfg *raftstore.Config) {
	cfg.Timeouts = raftstore.Timeouts{Heartbeat: 10 * time.Second, PromoteAfter: time.Millisecond}
}

// onDisk gives each server a directory of its own.
func onDisk(t *testing.T) func(int, *raftstore.Config) {
	root := t.TempDir()
	return func(i int, cfg *raftstore.Config) {
		cfg.InMemory, cfg.Dir = false, filepath.Join(root, fmt.Sprint(i))
		cfg.SnapshotEvery, cfg.TrailingLogs = 50, 10
	}
}

// sameState reports whether all servers have the same state at the same revision.
func sameState(c *storetest.Cluster) bool {
	first := c.Servers[0].Status()
	for _, s := range c.Servers {
		if status := s.Status(); status.Revision != first.Revision || status.StateHash != first.StateHash {
			return false
		}
	}
	return true
}

func TestRestartOfAllKeepsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, onDisk(t))
		ctx := limited(t)
		var last uint64
		for i := range 200 {
			r, err := c.Servers[i%3].Commit(ctx, put(fmt.Sprintf("/k%03d", i%150), fmt.Sprint(i)))
			if err != nil {
				t.Fatal(err)
			}
			last = r.Revision
			if i == 120 { // part of the state comes back from a snapshot, part from the log
				if err := c.Servers[0].Snapshot(); err != nil {
					t.Fatal(err)
				}
			}
		}
		ids := c.Servers[0].ID() + c.Servers[1].ID() + c.Servers[2].ID()
		for i := range 3 {
			c.Stop(i)
		}
		for i := range 3 {
			c.Start(i)
		}
		if got := c.Servers[0].ID() + c.Servers[1].ID() + c.Servers[2].ID(); got != ids {
			t.Errorf("the servers were %s and are %s", ids, got)
		}
		for i, s := range c.Servers {
			v, err := s.View(ctx, raftstore.ViewOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if v.Revision() != last || v.Count("/", "") != 150 {
				t.Errorf("server %d: %d keys at revision %d, want 150 at %d", i, v.Count("/", ""), v.Revision(), last)
			}
			if item, _ := v.Get("/k049"); string(item.Value) != "199" {
				t.Errorf("server %d: /k049 is %q, want 199", i, item.Value)
			}
		}
		r, err := c.Servers[2].Commit(ctx, put("/after", ""))
		if err != nil || r.Revision != last+1 {
			t.Errorf("the revision goes on with %d, %v; want %d", r.Revision, err, last+1)
		}
		c.Await("equal states", func() bool { return sameState(c) })
	})
}

// TestLateServerCatchesUpBySnapshot keeps a server away until it needs a snapshot. The snapshot
// carries history, so that a watcher at that server misses nothing, or gets ErrCompacted when
// history is too short.
func TestLateServerCatchesUpBySnapshot(t *testing.T) {
	for what, historyBytes := range map[string]int{"history reaches back": 0, "history is too short": 10_000} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				short := historyBytes != 0
				disk := onDisk(t)
				c := storetest.NewCluster(t, 3, func(i int, cfg *raftstore.Config) {
					disk(i, cfg)
					cfg.Limits.HistoryBytes = historyBytes
				})
				ctx := limited(t)
				leader, _ := c.Leader()
				late := (leader + 1) % 3
				first, err := c.Servers[leader].Commit(ctx, put("/first", ""))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := c.Servers[late].View(ctx, raftstore.ViewOptions{MinRevision: first.Revision}); err != nil {
					t.Fatal(err)
				}
				c.Stop(late)
				for i := range 200 {
					if _, err := c.Servers[leader].Commit(ctx, put(fmt.Sprintf("/k%d", i), "v")); err != nil {
						t.Fatal(err)
					}
				}
				if err := c.Servers[leader].Snapshot(); err != nil {
					t.Fatal(err)
				}
				c.Start(late)
				w, err := c.Servers[late].Watch(raftstore.WatchOptions{Prefix: "/", After: first.Revision})
				if err != nil && !short {
					t.Fatal(err)
				}
				v, viewErr := c.Servers[late].View(ctx, raftstore.ViewOptions{})
				if viewErr != nil || v.Count("/k", "") != 200 {
					t.Fatalf("late server: %v, %v", v, viewErr)
				}
				if err == nil {
					defer w.Close()
					err = watchesAll(ctx, w, first.Revision, v.Revision())
				}
				if short && !errors.Is(err, raftstore.ErrCompacted) || !short && err != nil {
					t.Errorf("a watcher over which a snapshot went: %v", err)
				}
				c.Await("equal states", func() bool { return sameState(c) })
			})
		})
	}
}

// watchesAll reads one event for each revision after the first and up to the last.
func watchesAll(ctx context.Context, w raftstore.Watcher, first, last uint64) error {
	for revision := first + 1; revision <= last; revision++ {
		b, err := w.Next(ctx)
		if err != nil {
			return err
		}
		if b.Revision != revision || len(b.Events) != 1 {
			return fmt.Errorf("%d events of revision %d instead of one of %d", len(b.Events), b.Revision, revision)
		}
	}
	return nil
}

// TestHistorySurvivesRestartOfAll stops all servers after a snapshot: clients that come back go on
// where they were, and lists that were being paged go on, too.
func TestHistorySurvivesRestartOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, onDisk(t))
		ctx := limited(t)
		for i := range 100 {
			if _, err := c.Servers[i%3].Commit(ctx, put(fmt.Sprintf("/k%d", i%10), fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
		last := c.Servers[0].Revision()
		for i := range c.Servers {
			if _, err := c.Servers[i].View(ctx, raftstore.ViewOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := c.Servers[i].Snapshot(); err != nil {
				t.Fatal(err)
			}
		}
		for i := range c.Servers {
			last = max(last, c.Servers[i].Revision())
			c.Stop(i)
		}
		for i := range c.Servers {
			c.Start(i)
		}
		for i, s := range c.Servers {
			w, err := s.Watch(raftstore.WatchOptions{Prefix: "/", After: last - 50})
			if err != nil {
				t.Fatalf("server %d: %v", i, err)
			}
			defer w.Close()
			if err := watchesAll(ctx, w, last-50, last); err != nil {
				t.Errorf("server %d: %v", i, err)
			}
			v, err := s.View(ctx, raftstore.ViewOptions{Revision: last - 50})
			if err != nil {
				t.Fatalf("server %d: %v", i, err)
			}
			if item, ok := v.Get("/k9"); !ok || string(item.Value) != "49" {
				t.Errorf("server %d: /k9 was %q at revision %d, want 49", i, item.Value, v.Revision())
			}
		}
	})
}

func TestTermFencesDeposedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, nil)
		ctx := limited(t)
		first, _ := c.Leader()
		leading, term, err := c.Servers[first].AwaitLeadership(ctx)
		if err != nil {
			t.Fatal(err)
		}
		fenced := put("/a", "1")
		fenced.Term = term
		if _, err := c.Servers[(first+1)%3].Commit(ctx, fenced); err != nil {
			t.Fatalf("in its term: %v", err)
		}
		if err := c.Servers[first].TransferLeadership(ctx, ""); err != nil {
			t.Fatal(err)
		}
		<-leading.Done()
		if cause := context.Cause(leading); !errors.Is(cause, raftstore.ErrLeadershipEnded) {
			t.Errorf("leadership ended with %v", cause)
		}
		second, next := c.Leader()
		if next <= term {
			t.Errorf("term %d follows term %d", next, term)
		}
		for i, s := range c.Servers {
			if _, err := s.Commit(ctx, fenced); !errors.Is(err, raftstore.ErrFenced) {
				t.Errorf("server %d, leader %d: after its term: %v, want ErrFenced", i, second, err)
			}
		}
	})
}

func TestMinorityIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, func(_ int, cfg *raftstore.Config) { cfg.RetryFor = 3 * time.Second })
		ctx := limited(t)
		leader, _ := c.Leader()
		other := (leader + 1) % 3
		if _, err := c.Servers[leader].Commit(ctx, put("/a", "1")); err != nil {
			t.Fatal(err)
		}
		c.Net.Isolate(storetest.Addr(leader))
		if _, err := c.Servers[other].Commit(ctx, put("/a", "2")); err != nil {
			t.Fatalf("on the majority: %v", err)
		}
		if v, err := c.Servers[leader].View(ctx, raftstore.ViewOptions{}); !errors.Is(err, raftstore.ErrUnavailable) {
			t.Errorf("a linearizable read on the minority: %v, %v", v, err)
		}
		v, err := c.Servers[leader].View(ctx, raftstore.ViewOptions{Stale: true})
		if err != nil {
			t.Fatal(err)
		}
		if item, _ := v.Get("/a"); string(item.Value) != "1" {
			t.Errorf("a stale read on the minority: %q", item.Value)
		}
		c.Net.Heal()
		if v, err = c.Servers[leader].View(ctx, raftstore.ViewOptions{}); err != nil {
			t.Fatalf("after healing: %v", err)
		}
		if item, _ := v.Get("/a"); string(item.Value) != "2" {
			t.Errorf("after healing: %q", item.Value)
		}
	})
}

func TestMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, nil)
		ctx := limited(t)
		leader, _ := c.Leader()
		follower, third := c.Servers[(leader+1)%3], c.Servers[(leader+2)%3]
		for _, p := range follower.PeerStatus(ctx) {
			if p.Status == nil || !p.Member.Voter || p.Status.ID != p.Member.ID || p.Status.Name != p.Member.Name {
				t.Errorf("status of %+v: %+v, %s", p.Member, p.Status, p.Error)
			}
		}
		var refused *raftstore.RefusedError
		if err := follower.AddNonvoter(ctx, "x.1", storetest.Addr(0)); !errors.As(err, &refused) {
			t.Errorf("an address that is taken: %v", err)
		}
		if err := follower.Promote(ctx, "nobody"); !errors.As(err, &refused) {
			t.Errorf("promotion of nobody: %v", err)
		}
		// One of three is gone: to remove another one that lives would leave one of two.
		gone := third.ID()
		c.Stop((leader + 2) % 3)
		if err := follower.Remove(ctx, follower.ID(), "test"); !errors.As(err, &refused) ||
			!strings.Contains(err.Error(), "they need 2") {
			t.Errorf("a removal that breaks the quorum: %v", err)
		}
		if err := follower.Remove(ctx, gone, "test"); err != nil {
			t.Fatalf("removal of the dead: %v", err)
		}
		// The leader removes itself: the other one takes over first.
		if err := c.Servers[leader].Remove(ctx, c.Servers[leader].ID(), "test"); err != nil {
			t.Fatalf("removal of the leader: %v", err)
		}
		if _, err := follower.Commit(ctx, put("/a", "1")); err != nil {
			t.Fatalf("on the last server: %v", err)
		}
		if m := follower.Members(); len(m) != 1 || m[0].ID != follower.ID() {
			t.Errorf("members at the end: %+v", m)
		}
		if err := follower.Remove(ctx, follower.ID(), "test"); !errors.As(err, &refused) {
			t.Errorf("removal of the last server: %v", err)
		}
	})
}

func TestRefusesForeignDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		edit := onDisk(t)
		c := storetest.NewCluster(t, 1, edit)
		c.Stop(0)
		cfg := c.Configs[0]
		cfg.Stream = c.Net.Host("x")
		cfg.ClusterID = "other"
		if s, err := raftstore.Open(cfg); err == nil || !strings.Contains(err.Error(), `belongs to cluster "test"`) {
			t.Errorf("a directory of another cluster: %v, %v", s, err)
		}
		path := filepath.Join(cfg.Dir, "server.json")
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, bytes.Replace(data, []byte(`"format": 1`), []byte(`"format": 99`), 1),
			0o600); err != nil {
			t.Fatal(err)
		}
		cfg.ClusterID = "test"
		if s, err := raftstore.Open(cfg); err == nil || !strings.Contains(err.Error(), "newer version") {
			t.Errorf("a directory of a newer version: %v, %v", s, err)
		}
	})
}

// TestServerWithoutItsLog takes all of a server's log away, as an operator does who clears a
// directory. It must not go on under its ID: it has acknowledged entries that are gone, and voted.
func TestServerWithoutItsLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, func(i int, cfg *raftstore.Config) {
			onDisk(t)(i, cfg)
			cfg.Name = fmt.Sprintf("s%d@rack", i) // people name servers as they like
		})
		leader, _ := c.Leader()
		loser := (leader + 1) % 3
		if _, err := c.Servers[loser].Commit(limited(t), put("/a", "1")); err != nil {
			t.Fatal(err)
		}
		c.Stop(loser)
		if err := os.RemoveAll(filepath.Join(c.Configs[loser].Dir, "log")); err != nil {
			t.Fatal(err)
		}
		cfg := c.Configs[loser]
		cfg.Stream = c.Net.Host("x")
		if s, err := raftstore.Open(cfg); err == nil || !strings.Contains(err.Error(), "is lost") ||
			!strings.Contains(err.Error(), "join again") {
			t.Errorf("a server that has forgotten everything: %v, %v", s, err)
			if s != nil {
				s.Close()
			}
		}
	})
}

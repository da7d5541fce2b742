package raftstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/syncbuf"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/mvcc"
	"github.com/barque/barque/raftstore/storetest"
)

// onePeriod is how often the leader compares, and a little for the exchange.
const onePeriod = 5*time.Second + 500*time.Millisecond

// corrupt gives a server another state at the revision that it has. The caller must not
// write meanwhile.
func corrupt(t *testing.T, s *raftstore.Server, marker string) {
	t.Helper()
	synctest.Wait() // the one writer of the state rests
	view, wrong := s.State().Latest(), mvcc.New(mvcc.Limits{})
	for wrong.Applied() < view.Revision() {
		txn := put("/wrong", marker)
		wrong.Apply(&txn, 0, 0)
	}
	wrong.Publish()
	origin := mvcc.Origin{Revision: view.Revision(), Now: s.State().Now(), Hash: wrong.Latest().Hash()}
	err := s.State().Load(origin, func(yield func(*kv.Item)) error {
		wrong.Latest().Ascend("", "", func(item kv.Item) bool { yield(&item); return true })
		return nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
}

// steady waits until all servers have the newest revision.
func steady(c *storetest.Cluster) { c.Await("equal states", func() bool { return sameState(c) }) }

// newSteady returns a cluster whose servers have equal states, at a revision above 0, and
// its leader.
func newSteady(t *testing.T, size int, edit func(i int, cfg *raftstore.Config)) (c *storetest.Cluster, leader int) {
	t.Helper()
	c = storetest.NewCluster(t, size, edit)
	leader, _ = c.Leader()
	if _, err := c.Servers[leader].Commit(limited(t), put("/a", "1")); err != nil {
		t.Fatal(err)
	}
	steady(c)
	return c, leader
}

// checkServesNothing checks that all ways to the data are closed.
func checkServesNothing(t *testing.T, s *raftstore.Server) {
	t.Helper()
	ctx := limited(t)
	began := time.Now()
	for name, opts := range map[string]raftstore.ViewOptions{
		"View": {}, "stale View": {Stale: true}, "View at": {Revision: s.Revision()},
		"View after": {MinRevision: s.Revision() + 1},
	} {
		if _, err := s.View(ctx, opts); !errors.Is(err, raftstore.ErrQuarantined) ||
			!errors.Is(err, raftstore.ErrUnavailable) {
			t.Errorf("%s in quarantine: %v", name, err)
		}
	}
	if _, err := s.Commit(ctx, put("/from-quarantine", "")); !errors.Is(err, raftstore.ErrQuarantined) {
		t.Errorf("Commit in quarantine: %v", err)
	}
	if _, err := s.Watch(raftstore.WatchOptions{Prefix: "/"}); !errors.Is(err, raftstore.ErrQuarantined) {
		t.Errorf("Watch in quarantine: %v", err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("the refusals took %v: they must not be repeated", took)
	}
}

func TestFollowerThatDiffersIsQuarantined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log syncbuf.Buffer
		c, leader := newSteady(t, 3, func(_ int, cfg *raftstore.Config) {
			cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
		})
		ctx := limited(t)
		bad := (leader + 1) % 3
		corrupt(t, c.Servers[bad], "follower")
		w, err := c.Servers[bad].Watch(raftstore.WatchOptions{Prefix: "/only-here"})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		if _, err := c.Servers[leader].Commit(ctx, put("/b", "2")); err != nil {
			t.Fatal(err)
		}
		<-time.After(onePeriod)

		reason := c.Servers[bad].Status().Quarantined
		wrong, right := c.Servers[bad].Status().StateHash, c.Servers[leader].Status().StateHash
		for _, text := range []string{reason, log.String()} {
			for _, want := range []string{c.Servers[bad].ID(), "revision 2", wrong, right, "join again"} {
				if !strings.Contains(text, want) {
					t.Errorf("it does not say %q: %s", want, text)
				}
			}
		}
		if _, err := w.Next(ctx); !errors.Is(err, raftstore.ErrQuarantined) {
			t.Errorf("an open watcher: %v", err)
		}
		checkServesNothing(t, c.Servers[bad])

		for _, i := range []int{leader, (leader + 2) % 3} {
			if _, err := c.Servers[i].Commit(ctx, put("/c", fmt.Sprint(i))); err != nil {
				t.Errorf("server %d: %v", i, err)
			}
			if _, err := c.Servers[i].View(ctx, raftstore.ViewOptions{}); err != nil {
				t.Errorf("server %d: %v", i, err)
			}
			if why := c.Servers[i].Status().Quarantined; why != "" {
				t.Errorf("server %d is in quarantine: %s", i, why)
			}
		}
		// A server in quarantine that is given leadership hands it on.
		if err := c.Servers[leader].TransferLeadership(ctx, c.Servers[bad].ID()); err != nil {
			t.Logf("transfer to the one in quarantine: %v", err)
		}
		if _, err := c.Servers[leader].Commit(ctx, put("/d", "")); err != nil {
			t.Errorf("after a transfer to the one in quarantine: %v", err)
		}
		if now, _ := c.Leader(); now == bad {
			t.Error("the server in quarantine leads")
		}
	})
}

func TestLeaderThatDiffersIsQuarantined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, bad := newSteady(t, 3, nil)
		ctx := limited(t)
		leading, term, err := c.Servers[bad].AwaitLeadership(ctx)
		if err != nil {
			t.Fatal(err)
		}
		corrupt(t, c.Servers[bad], "leader")
		if _, err := c.Servers[(bad+1)%3].Commit(ctx, put("/b", "2")); err != nil {
			t.Fatal(err)
		}
		<-time.After(onePeriod)

		if c.Servers[bad].Status().Quarantined == "" {
			t.Fatal("the leader is not in quarantine")
		}
		if cause := context.Cause(leading); !errors.Is(cause, raftstore.ErrQuarantined) {
			t.Errorf("its leadership ended with %v", cause)
		}
		checkServesNothing(t, c.Servers[bad])
		next, newTerm := c.Leader()
		if next == bad || newTerm <= term {
			t.Errorf("server %d leads in term %d, after server %d in term %d", next, newTerm, bad, term)
		}
		for _, i := range []int{(bad + 1) % 3, (bad + 2) % 3} {
			if _, err := c.Servers[i].Commit(ctx, put("/c", fmt.Sprint(i))); err != nil {
				t.Errorf("server %d: %v", i, err)
			}
		}
	})
}

// TestReturningServerIsCompared spoils a server that is cut off. It must be found after it has come
// back, though nothing is written any more.
func TestReturningServerIsCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, leader := newSteady(t, 3, nil)
		bad := (leader + 1) % 3
		c.Net.Isolate(storetest.Addr(bad))
		corrupt(t, c.Servers[bad], "away")
		<-time.After(2 * onePeriod)
		if why := c.Servers[bad].Status().Quarantined; why != "" {
			t.Fatalf("found while it was cut off: %s", why)
		}
		c.Net.Heal()
		<-time.After(2 * onePeriod)
		if c.Servers[bad].Status().Quarantined == "" {
			t.Error("not found after it came back")
		}
	})
}

func TestNobodyIsQuarantinedWithoutMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, leader := newSteady(t, 2, nil)
		corrupt(t, c.Servers[1-leader], "one of two")
		<-time.After(2 * onePeriod)
		for i, s := range c.Servers {
			if why := s.Status().Quarantined; why != "" {
				t.Errorf("server %d is in quarantine: %s", i, why)
			}
		}
		if text := c.Servers[leader].Status().Undecided; !strings.Contains(text, c.Servers[leader].Status().StateHash) {
			t.Errorf("the leader says %q", text)
		}
	})
}

func TestQuarantineOutlivesRestart(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c, leader := newSteady(t, 3, func(i int, cfg *raftstore.Config) {
			cfg.InMemory, cfg.Dir, cfg.KeepQuarantine = false, filepath.Join(root, fmt.Sprint(i)), true
		})
		ctx := limited(t)
		bad := (leader + 1) % 3
		corrupt(t, c.Servers[bad], "on disk")
		<-time.After(2 * onePeriod)
		reason := c.Servers[bad].Status().Quarantined
		if !strings.Contains(reason, c.Configs[bad].Dir) {
			t.Fatalf("it does not name the directory: %q", reason)
		}
		c.Stop(bad)
		c.Start(bad)
		if got := c.Servers[bad].Status().Quarantined; got != reason {
			t.Errorf("after a restart: %q, before: %q", got, reason)
		}
		checkServesNothing(t, c.Servers[bad])

		// Without it and another one there is no quorum; with its vote there is one, and it does
		// not lead.
		c.Stop(leader)
		if _, err := c.Servers[(leader+2)%3].Commit(ctx, put("/b", "2")); err != nil {
			t.Errorf("with the vote of the one in quarantine: %v", err)
		}
		if now, _ := c.Leader(); now == bad {
			t.Error("the server in quarantine leads")
		}
	})
}

// TestNoFalseAlarm compares while leaders are cut off and handed over, while snapshots replace the
// log of servers that were away, and while history is compacted.
func TestNoFalseAlarm(t *testing.T) {
	first := *seed
	if first == 0 {
		first = rand.Uint64()
	}
	count := *seeds
	if testing.Short() {
		count = 1
	}
	for i := range count {
		seed := first + i
		t.Run(fmt.Sprint(seed),
			func(t *testing.T) { synctest.Test(t, func(t *testing.T) { checkNoFalseAlarm(t, seed) }) })
	}
}

func checkNoFalseAlarm(t *testing.T, seed uint64) {
	c := storetest.NewCluster(t, 3, func(i int, cfg *raftstore.Config) {
		cfg.RetryFor = time.Second
		cfg.SnapshotEvery, cfg.TrailingLogs = 20, 5
	})
	rnd := rand.New(rand.NewPCG(seed, 2))
	ctx, stop := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	for i, s := range c.Servers {
		writing.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(10+i)))
			for ctx.Err() == nil {
				txn := put(fmt.Sprintf("/k%d", rnd.IntN(20)), fmt.Sprint(rnd.Int()))
				if rnd.IntN(4) == 0 {
					txn.Ops[0] = raftstore.Op{Kind: raftstore.Delete, Key: txn.Ops[0].Key}
				}
				r, err := s.Commit(ctx, txn) // errors are expected under faults
				if err == nil && rnd.IntN(50) == 0 {
					s.Compact(ctx, r.Revision)
				}
				<-time.After(time.Duration(rnd.IntN(int(100 * time.Millisecond))))
			}
		})
	}
	for range 8 {
		<-time.After(time.Duration(rnd.IntN(int(8 * time.Second))))
		victim := rnd.IntN(3)
		if rnd.IntN(2) == 0 {
			victim, _ = c.Leader()
		}
		switch rnd.IntN(3) {
		case 0:
			c.Servers[victim].TransferLeadership(context.Background(), "")
		default:
			c.Net.Isolate(storetest.Addr(victim))
			<-time.After(time.Duration(rnd.IntN(int(10 * time.Second))))
			for _, s := range c.Servers { // a server that was away comes back by snapshot
				if err := s.Snapshot(); err != nil {
					t.Error(err)
				}
			}
			c.Net.Heal()
		}
	}
	stop()
	writing.Wait()
	steady(c)
	<-time.After(2 * onePeriod)
	leader, _ := c.Leader()
	if s := c.Servers[leader].Status(); s.Compared != s.Revision {
		t.Errorf("compared up to revision %d of %d", s.Compared, s.Revision)
	}
	for i, s := range c.Servers {
		if s := s.Status(); s.Quarantined != "" || s.Undecided != "" {
			t.Errorf("server %d: %s%s", i, s.Quarantined, s.Undecided)
		}
	}
}

package raftstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/faultpoint"
	"github.com/barque/barque/raftstore/storetest"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// items gives a restore the items with these keys and values.
func items(keys []string, value string) func(yield func(*raftstore.Item) error) error {
	return func(yield func(*raftstore.Item) error) error {
		for _, key := range slices.Sorted(slices.Values(keys)) {
			if err := yield(&raftstore.Item{Key: key, Value: []byte(value)}); err != nil {
				return err
			}
		}
		return nil
	}
}

// smallChunk is for tests of restores in several chunks, by RestoreInChunksOf.
const smallChunk = 4 << 10

// contents are all keys and values of a server, newest first asked for.
func contents(t *testing.T, s *raftstore.Store) map[string]string {
	t.Helper()
	v, err := s.View(limited(t), raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	v.Ascend("", "", func(item raftstore.Item) bool { all[item.Key] = string(item.Value); return true })
	return all
}

func TestRestoreIsOneWrite(t *testing.T) {
	s := raftstore.NewInMemory(raftstore.Options{})
	defer s.Close()
	ctx := limited(t)
	for _, key := range []string{"/kept", "/changed", "/gone"} {
		if _, err := s.Commit(ctx, put(key, key)); err != nil {
			t.Fatal(err)
		}
	}
	w, err := s.Watch(raftstore.WatchOptions{Prefix: "/", After: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	list := func(yield func(*raftstore.Item) error) error {
		for _, item := range []raftstore.Item{
			{Key: "/changed", Value: []byte("old"), ModRevision: 77}, {Key: "/kept", Value: []byte("/kept")},
			{Key: "/new", Value: []byte("new")},
		} {
			if err := yield(&item); err != nil {
				return err
			}
		}
		return nil
	}
	result, err := s.Restore(ctx, list, raftstore.RestoreOptions{})
	if err != nil || result.Revision != 4 {
		t.Fatalf("%+v, %v; want revision 4", result, err)
	}
	v, err := s.View(ctx, raftstore.ViewOptions{})
	if err != nil || v.Revision() != 4 || v.Count("", "") != 3 {
		t.Fatalf("%+v, %v", v, err)
	}
	for key, want := range map[string][3]any{ // value, created, changed
		"/kept": {"/kept", uint64(1), uint64(1)}, "/changed": {"old", uint64(2), uint64(4)},
		"/new": {"new", uint64(4), uint64(4)},
	} {
		item, _ := v.Get(key)
		if got := [3]any{string(item.Value), item.CreateRevision, item.ModRevision}; got != want {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	if _, err := w.Next(ctx); !errors.Is(err, raftstore.ErrCompacted) {
		t.Errorf("a watcher from before: %v", err)
	}
	if _, err := s.Watch(raftstore.WatchOptions{Prefix: "/", After: 3}); !errors.Is(err, raftstore.ErrCompacted) {
		t.Errorf("a watch from before: %v", err)
	}
	if _, err := s.View(ctx, raftstore.ViewOptions{Revision: 3}); !errors.Is(err, raftstore.ErrCompacted) {
		t.Errorf("a view of before: %v", err)
	}
	// A write that was computed from items that are gone conflicts; one from items that were kept
	// does not.
	stale := put("/changed", "stale")
	stale.Require = []raftstore.Precondition{{Key: "/changed", ModRevision: 2}}
	var conflict *raftstore.ConflictError
	if _, err := s.Commit(ctx, stale); !errors.As(err, &conflict) {
		t.Errorf("a write from a revision before the restore: %v", err)
	}
	good := put("/kept", "more")
	good.Require = []raftstore.Precondition{{Key: "/kept", ModRevision: 1}}
	if r, err := s.Commit(ctx, good); err != nil || r.Revision != 5 {
		t.Errorf("a write from what was kept: %+v, %v", r, err)
	}
	if r, err := s.Restore(ctx, list, raftstore.RestoreOptions{AtLeast: 1_000_000}); err != nil ||
		r.Revision != 1_000_000 {
		t.Errorf("with a lowest revision: %+v, %v", r, err)
	}
	if r, err := s.Restore(ctx, list, raftstore.RestoreOptions{AtLeast: 7}); err != nil || r.Revision != 1_000_001 {
		t.Errorf("the revision goes on with %+v, %v", r, err)
	}
}

// The work of a leader ends at a restore, and begins anew in the same term. A restore that is given
// up ends nothing.
func TestRestoreEndsTheWorkOfTheLeader(t *testing.T) {
	s := raftstore.NewInMemory(raftstore.Options{})
	defer s.Close()
	ctx := limited(t)
	leading, term, err := s.AwaitLeadership(ctx)
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if _, err := s.Restore(ctx, func(func(*raftstore.Item) error) error { return broken },
		raftstore.RestoreOptions{}); !errors.Is(err, broken) {
		t.Fatalf("a restore whose items fail: %v", err)
	}
	if _, err := s.Commit(ctx, put("/a", "1")); err != nil {
		t.Fatal(err)
	}
	if leading.Err() != nil {
		t.Fatalf("a restore that was given up ended the work: %v", context.Cause(leading))
	}
	if _, err := s.Restore(ctx, items([]string{"/a"}, "2"), raftstore.RestoreOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-leading.Done():
	case <-ctx.Done():
		t.Fatal("the work goes on after a restore")
	}
	if cause := context.Cause(leading); !strings.Contains(cause.Error(), "restore") {
		t.Errorf("the work ended with %v", cause)
	}
	again, same, err := s.AwaitLeadership(ctx)
	if err != nil || same != term || again.Err() != nil {
		t.Errorf("after the restore: term %d, %v, %v; want term %d and work that goes on", same, again.Err(), err, term)
	}
}

// TestRestoreIsBounded restores more than the store may hold, which all servers would have to keep
// beside their state.
func TestRestoreIsBounded(t *testing.T) {
	s := raftstore.NewInMemory(raftstore.Options{Limits: raftstore.Limits{StateBytes: 2 << 20}})
	defer s.Close()
	ctx := limited(t)
	if _, err := s.Commit(ctx, put("/before", "1")); err != nil {
		t.Fatal(err)
	}
	given := 0
	endless := func(yield func(*raftstore.Item) error) error {
		for ; given < 1000; given++ {
			if err := yield(
				&raftstore.Item{Key: fmt.Sprintf("/%04d", given), Value: make([]byte, 100<<10)}); err != nil {
				return err
			}
		}
		return nil
	}
	if _, err := s.Restore(ctx, endless, raftstore.RestoreOptions{}); !errors.Is(err, raftstore.ErrNoSpace) ||
		given > 30 {
		t.Fatalf("after %d items of 100 KiB: %v", given, err)
	}
	if got := contents(t, s); len(got) != 1 || got["/before"] != "1" {
		t.Errorf("it left %d items", len(got))
	}
	// Items that were put aside do not count any more. A store that is in its reserve can
	// be restored.
	full := items(numbered(21), strings.Repeat("x", 100<<10))
	if _, err := s.Restore(ctx, full, raftstore.RestoreOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Restore(ctx, full, raftstore.RestoreOptions{AtLeast: 1 << 63}); !errors.Is(err,
		raftstore.ErrInvalid) {
		t.Errorf("a revision that leaves no room above it: %v", err)
	}
}

func numbered(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("/%04d", i))
	}
	return keys
}

func TestFailedRestoreChangesNothing(t *testing.T) {
	s := raftstore.NewInMemory(raftstore.Options{})
	defer s.Close()
	ctx := limited(t)
	if _, err := s.Commit(ctx, put("/a", "1")); err != nil {
		t.Fatal(err)
	}
	w, err := s.Watch(raftstore.WatchOptions{Prefix: "/"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	broken := errors.New("the file is damaged")
	big := strings.Repeat("x", 300<<10)
	for name, list := range map[string]func(yield func(*raftstore.Item) error) error{
		"the source fails": func(yield func(*raftstore.Item) error) error {
			for _, key := range []string{"/b", "/c", "/d"} { // more than one chunk
				if err := yield(&raftstore.Item{Key: key, Value: []byte(big)}); err != nil {
					return err
				}
			}
			return broken
		},
		"the keys do not ascend": func(yield func(*raftstore.Item) error) error {
			for _, key := range []string{"/b", "/a"} {
				if err := yield(&raftstore.Item{Key: key}); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		_, err := s.Restore(ctx, list, raftstore.RestoreOptions{})
		if !errors.Is(err, broken) && !errors.Is(err, raftstore.ErrInvalid) ||
			!strings.Contains(err.Error(), "nothing was changed") {
			t.Errorf("%s: %v", name, err)
		}
		if got := contents(t, s); len(got) != 1 || got["/a"] != "1" || s.Revision() != 1 {
			t.Errorf("%s: the store has %d keys at revision %d", name, len(got), s.Revision())
		}
	}
	if _, err := s.Commit(ctx, put("/b", "2")); err != nil {
		t.Fatal(err)
	}
	if b, err := w.Next(ctx); err != nil || b.Revision != 2 {
		t.Errorf("a watcher: %+v, %v", b, err)
	}
	if _, err := s.Restore(ctx, items([]string{"/a"}, "again"), raftstore.RestoreOptions{}); err != nil {
		t.Errorf("a restore after failed ones: %v", err)
	}
}

// TestRestoreWhileLeadersChange restores several times while clients read and write through all
// servers and leaders are cut off. A restore writes every key of the clients, so for each key it is
// a write of its revision; the history must be linearizable, revisions must never go back, and the
// states must be equal.
func TestRestoreWhileLeadersChange(t *testing.T) {
	seed := *seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat with -seed %d", seed)
	history := new(storetest.History)
	restores := 0
	synctest.Test(t, func(t *testing.T) {
		history = storetest.NewHistory()
		c := storetest.NewCluster(t, 3, func(_ int, cfg *raftstore.Config) {
			cfg.RetryFor = time.Second
			cfg.SnapshotEvery, cfg.TrailingLogs = 60, 20 // snapshots in the middle of a restore
		})
		for _, s := range c.Servers {
			s.RestoreInChunksOf(smallChunk)
		}
		rnd := rand.New(rand.NewPCG(seed, 3))
		ctx, stop := context.WithCancel(context.Background())
		var clients sync.WaitGroup
		for i := range 5 {
			clients.Go(func() { history.Client(ctx, seed, 3, func() storetest.Server { return c.Servers[i%3] }) })
		}
		for _, s := range c.Servers {
			clients.Go(func() { watchRevisions(t, ctx, s) })
		}
		clients.Go(func() { restores = restoreOften(t, ctx, seed, c, history) })
		for range 12 {
			leader, _ := c.Leader()
			<-time.After(time.Duration(rnd.IntN(int(500 * time.Millisecond))))
			if rnd.IntN(3) == 0 {
				c.Servers[leader].TransferLeadership(context.Background(), "")
				continue
			}
			c.Net.Isolate(storetest.Addr(leader))
			<-time.After(time.Duration(rnd.IntN(int(time.Second))))
			c.Net.Heal()
		}
		stop()
		clients.Wait()
		if _, err := c.Servers[0].Commit(limited(t), put("/end", "")); err != nil {
			t.Fatal(err)
		}
		c.Await("equal states", func() bool { return sameState(c) })
		<-time.After(2 * onePeriod)
		for i, s := range c.Servers {
			if why := s.Status().Quarantined; why != "" {
				t.Errorf("server %d is in quarantine: %s", i, why)
			}
		}
	})
	t.Logf("%d operations, %d restores", history.Len(), restores)
	if restores < 3 {
		t.Errorf("only %d restores", restores)
	}
	history.Check(t)
}

// restoreOften restores the clients' keys and a few large ones, which make it several chunks, by
// one server after the other, and returns how often.
func restoreOften(
	t *testing.T, ctx context.Context, seed uint64, c *storetest.Cluster, history *storetest.History,
) (restores int) {
	rnd := rand.New(rand.NewPCG(seed, 4))
	keys := []string{"/key0", "/key1", "/key2"}
	for n := 0; ctx.Err() == nil; n++ {
		large := strings.Repeat(fmt.Sprint(n%10), smallChunk*3/4)
		list := func(yield func(*raftstore.Item) error) error {
			for _, key := range slices.Concat([]string{"/big0", "/big1", "/big2"}, keys) {
				item := raftstore.Item{Key: key, Value: fmt.Append(nil, n)}
				if strings.HasPrefix(key, "/big") {
					item.Value = []byte(large)
				}
				if err := yield(&item); err != nil {
					return err
				}
			}
			return nil
		}
		if history.Restore(ctx, c.Servers[n%3], list, keys) {
			restores++
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(rnd.IntN(int(400 * time.Millisecond)))):
		}
	}
	return restores
}

// watchRevisions follows a server over restores: after each ErrCompacted it begins again from a
// view, as an informer does. No revision may come that is not above the one before.
func watchRevisions(t *testing.T, ctx context.Context, s *raftstore.Server) {
	last := uint64(0)
	for ctx.Err() == nil {
		v, err := s.View(ctx, raftstore.ViewOptions{Stale: true})
		if err != nil {
			continue
		}
		if v.Revision() < last {
			t.Errorf("a view of revision %d comes after revision %d", v.Revision(), last)
		}
		last = v.Revision()
		w, err := s.Watch(raftstore.WatchOptions{Prefix: "/", After: last})
		if err != nil {
			continue // a restore came in between
		}
		for err == nil {
			var b raftstore.Batch
			if b, err = w.Next(ctx); err != nil {
				break
			}
			if b.Revision <= last {
				t.Errorf("revision %d comes after revision %d", b.Revision, last)
			}
			last = b.Revision
		}
		if ctx.Err() == nil && !errors.Is(err, raftstore.ErrCompacted) {
			t.Errorf("a watcher: %v", err)
		}
		w.Close()
	}
}

func TestAbandonedRestoreIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, unhurried)
		leader, _ := c.Leader()
		maker := (leader + 1) % 3
		staged, dies := make(chan struct{}), make(chan struct{})
		var making sync.WaitGroup
		making.Go(func() {
			large := strings.Repeat("x", smallChunk)
			c.Servers[maker].RestoreInChunksOf(smallChunk)
			_, err := c.Servers[maker].Restore(context.Background(), func(yield func(*raftstore.Item) error) error {
				if err := yield(&raftstore.Item{Key: "/a", Value: []byte(large)}); err != nil {
					return err
				}
				close(staged)
				<-dies
				return yield(&raftstore.Item{Key: "/b", Value: []byte(large)})
			}, raftstore.RestoreOptions{})
			if err == nil {
				t.Error("an abandoned restore succeeded")
			}
		})
		<-staged
		other := c.Servers[(leader+2)%3]
		if _, err := other.Restore(limited(t), items([]string{"/x"}, "1"), raftstore.RestoreOptions{}); !errors.Is(err,
			raftstore.ErrInvalid) {
			t.Errorf("a second restore: %v", err)
		}
		<-time.After(6 * time.Minute)
		if _, err := other.Restore(limited(t), items([]string{"/x"}, "1"), raftstore.RestoreOptions{}); err != nil {
			t.Errorf("after the first one was abandoned: %v", err)
		}
		close(dies)
		making.Wait()
		if got := contents(t, other.Store); len(got) != 1 || got["/x"] != "1" {
			t.Errorf("the store has %v", got)
		}
	})
}

// TestRestoreOutlivesRestart stops servers while items are put aside: some come back from a
// snapshot taken in the middle, with those items.
func TestRestoreOutlivesRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, onDisk(t))
		ctx := limited(t)
		leader, _ := c.Leader()
		maker := leader
		large := strings.Repeat("x", smallChunk)
		c.Servers[maker].RestoreInChunksOf(smallChunk)
		_, err := c.Servers[maker].Restore(ctx, func(yield func(*raftstore.Item) error) error {
			for i := range 4 {
				if err := yield(&raftstore.Item{Key: fmt.Sprintf("/k%d", i), Value: []byte(large)}); err != nil {
					return err
				}
				other := (maker + 1 + i%2) % 3
				if err := c.Servers[other].Snapshot(); err != nil {
					return err
				}
				c.Stop(other)
				c.Start(other)
			}
			return nil
		}, raftstore.RestoreOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c.Await("equal states", func() bool { return sameState(c) })
		for i := range c.Servers {
			if got := contents(t, c.Servers[i].Store); len(got) != 4 || got["/k3"] != large {
				t.Errorf("server %d has %d keys", i, len(got))
			}
		}
	})
}

// Variables for the process that TestCrashInRestore kills: its directory, and after which sync of
// the log it dies.
const (
	restoreCrashDir  = "RAFTSTORE_RESTORE_CRASH_DIR"
	restoreCrashSync = "RAFTSTORE_RESTORE_CRASH_SYNC"
)

// large are items for several chunks, all with the same value.
func large(value byte) func(yield func(*raftstore.Item) error) error {
	return items([]string{"/a", "/b", "/c", "/d"}, strings.Repeat(string(value), smallChunk*3/4))
}

func openForCrash(dir string, fault func(string)) (*raftstore.Server, error) {
	s, err := raftstore.Open(
		raftstore.Config{Dir: dir, Bootstrap: true, Stream: new(memnet.Network).Host("alone"), FaultPoint: fault})
	if err == nil {
		s.RestoreInChunksOf(smallChunk)
	}
	return s, err
}

// TestCrashInRestoreChild is the process that dies.
func TestCrashInRestoreChild(t *testing.T) {
	dir := os.Getenv(restoreCrashDir)
	if dir == "" {
		t.Skip("it is started by TestCrashInRestore")
	}
	last, err := strconv.Atoi(os.Getenv(restoreCrashSync))
	if err != nil {
		t.Fatal(err)
	}
	var armed atomic.Bool
	syncs := 0
	s, err := openForCrash(dir, func(point string) {
		if !armed.Load() || point != faultpoint.LogAfterSync {
			return
		}
		if syncs++; syncs == last {
			if p, err := os.FindProcess(os.Getpid()); err == nil {
				p.Kill()
			}
			select {}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Restore(context.Background(), large('1'), raftstore.RestoreOptions{}); err != nil {
		t.Fatal(err)
	}
	armed.Store(true)
	result, err := s.Restore(context.Background(), large('2'), raftstore.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("acknowledged %d\n", result.Revision)
}

// TestCrashInRestore kills a server after each write to its log that a restore makes. The state
// after it is the one before or the new one, whole, and the new one if it was acknowledged; and
// another restore can be made.
func TestCrashInRestore(t *testing.T) {
	before, after := 0, 0
	for sync := 1; ; sync++ {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0], "-test.run=^TestCrashInRestoreChild$")
		cmd.Env = append(os.Environ(), restoreCrashDir+"="+dir, fmt.Sprintf("%s=%d", restoreCrashSync, sync))
		out, err := cmd.Output()
		acknowledged := strings.Contains(string(out), "acknowledged")
		if err == nil != acknowledged {
			t.Fatalf("sync %d: %v, %s", sync, err, out)
		}
		s, err := openForCrash(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := contents(t, s.Store)
		revision := s.Revision()
		values := map[byte]int{}
		for _, value := range got {
			values[value[0]]++
		}
		switch {
		case len(got) != 4 || len(values) != 1 || acknowledged && values['2'] != 4:
			t.Errorf("sync %d, acknowledged %v: %v", sync, acknowledged, values)
		case values['1'] == 4:
			before++
		default:
			after++
		}
		if r, err := s.Restore(limited(t), large('3'), raftstore.RestoreOptions{Supersede: true}); err != nil ||
			r.Revision != revision+1 {
			t.Errorf("sync %d: another restore: %+v, %v", sync, r, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if acknowledged {
			break
		}
	}
	if before < 3 || after < 2 { // begin, two chunks; the commit, and the one that was acknowledged
		t.Errorf("%d times the state before, %d times the one after", before, after)
	}
}

package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/barque/barque/cluster-test/disk"
	"github.com/barque/barque/cluster-test/store/member"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/faultpoint"
)

func TestMain(m *testing.M) {
	member.ServeIfMember()
	driveIfAsked()
	os.Exit(m.Run())
}

// patience bounds anything on a machine that is busy with other things.
const patience = await.Hang

func newTestGroup(t *testing.T, cfg Config) (*Group, context.Context) {
	t.Helper()
	if cfg.DiskMegabytes > 0 {
		needs.NoError(t, DisksPossible(), "the store on disks that are full or lose power")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	cfg.Dir = t.TempDir()
	cfg.Options.Timeouts.PromoteAfter = time.Millisecond
	g, err := NewGroup(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g, ctx
}

func put(key, value string) raftstore.Txn {
	return raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: key, Value: []byte(value)}}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOperations(t *testing.T) {
	g, ctx := newTestGroup(t, Config{Size: 3})
	a, b, c := g.Members()[0], g.Members()[1], g.Members()[2]
	w, err := c.Watch(ctx, raftstore.WatchOptions{Prefix: "/"})
	must(t, err)
	defer w.Close()
	r, err := b.Commit(ctx, put("/k", "v"))
	must(t, err)
	item, found, revision, err := c.Get(ctx, "/k", raftstore.ViewOptions{})
	if err != nil || !found || string(item.Value) != "v" || item.ModRevision != r.Revision || revision < r.Revision {
		t.Fatalf("get: %v, %v, %d, %v", item, found, revision, err)
	}
	items, _, err := a.List(ctx, member.ListArgs{Prefix: "/", Limit: 1})
	if err != nil || len(items) != 1 || items[0].Key != "/k" {
		t.Fatalf("list: %v, %v", items, err)
	}
	var batches []raftstore.Batch
	for len(batches) == 0 {
		batches, err = w.Next(ctx, time.Second)
		must(t, err)
	}
	if len(batches) != 1 || batches[0].Revision != r.Revision || batches[0].Events[0].Item.Key != "/k" {
		t.Fatalf("watch: %v", batches)
	}
	_, err = a.Commit(ctx, raftstore.Txn{Require: []raftstore.Precondition{{Key: "/k"}}})
	var conflict *raftstore.ConflictError
	if !errors.As(err, &conflict) || conflict.Current == nil || conflict.Current.ModRevision != r.Revision {
		t.Fatalf("a conflict: %v", err)
	}
	if _, err := a.Commit(ctx, put("", "v")); !errors.Is(err, raftstore.ErrInvalid) {
		t.Fatalf("an empty key: %v", err)
	}
	_, _, _, err = b.Get(ctx, "/k", raftstore.ViewOptions{Revision: 1 << 40})
	if !errors.Is(err, raftstore.ErrFutureRevision) {
		t.Fatalf("the future: %v", err)
	}
	must(t, a.Change(ctx, member.Change{Kind: member.Snapshot}))
	must(t, poll(ctx, "the second member leads", func(ctx context.Context) (bool, error) {
		// It is refused while a member does not answer, and a busy machine may bring another
		// election after it.
		if err := a.Change(ctx, member.Change{Kind: member.Transfer, ID: b.ID()}); err != nil {
			return false, err
		}
		leader, err := g.AwaitLeader(ctx)
		return leader == b, err
	}))
}

// remove has a member that stays remove another one, for as long as that is refused: those that
// stay may not have found each other yet, or one may not answer for a moment.
func remove(t *testing.T, ctx context.Context, by, gone *Member) {
	t.Helper()
	must(t, poll(ctx, gone.Name+" is removed", func(ctx context.Context) (bool, error) {
		err := by.Change(ctx, member.Change{Kind: member.Remove, ID: gone.ID()})
		return err == nil, err
	}))
}

func TestLoads(t *testing.T) {
	g, ctx := newTestGroup(t, Config{Size: 1})
	m := g.Members()[0]
	watched := make(chan member.LoadResult)
	go func() {
		r, err := m.Load(ctx,
			member.Load{Kind: member.Watches, Clients: 3, Prefix: "/load/", For: patience / 2, Ops: 300})
		if err != nil {
			t.Error(err)
		}
		watched <- r
	}()
	// The watchers are there when they see events; 100 of them must come after that.
	var watch member.LoadResult
	for seen := false; !seen; {
		for _, kind := range []member.LoadKind{member.Puts, member.Reads, member.StaleReads, member.Lists} {
			r, err := m.Load(ctx,
				member.Load{Kind: kind, Clients: 4, ValueBytes: 100, Prefix: "/load/", Keys: 50, Ops: 100})
			must(t, err)
			if r.Ops != 100 || r.Errors != 0 || r.Latency.Total != 100 || r.Latency.Quantile(0.5) > r.Latency.Max ||
				r.Elapsed <= 0 || r.LongestGap <= 0 || r.Usage.RSS < 1<<20 {
				t.Fatalf("%s: %+v", kind, r)
			}
		}
		select {
		case watch = <-watched:
			seen = true
		default:
		}
	}
	if watch.Ops < 300 || watch.Latency.Max <= 0 || watch.Latency.Max > patience {
		t.Errorf("watch: %+v", watch)
	}
	if u, err := m.Usage(ctx); err != nil || u.Heap <= 0 || u.CPU <= 0 {
		t.Errorf("usage: %+v, %v", u, err)
	}
	if _, err := m.Load(ctx, member.Load{Kind: "x", Ops: 1}); err != nil {
		t.Errorf("an error of each operation is counted, and not returned: %v", err)
	}
	if _, err := m.Load(ctx, member.Load{Kind: member.Puts}); err == nil {
		t.Error("a load without end was not refused")
	}
}

// TestArmedPoint kills a member in a write, and in its start.
func TestArmedPoint(t *testing.T) {
	for _, logStore := range []string{"boltdb", "wal"} {
		t.Run(logStore, func(t *testing.T) {
			g, ctx := newTestGroup(t, Config{Size: 1, Options: member.Options{
				// no write is repeated, however slow the disk is
				LogStore: logStore, Timeouts: raftstore.Timeouts{DiskWrite: time.Hour},
			}})
			m := g.Members()[0]
			// its entries of that are written then
			must(t, poll(ctx, "the member leads", func(ctx context.Context) (bool, error) {
				status, _, err := m.Status(ctx)
				return err == nil && len(status.Health) > 0, err
			}))
			_, err := m.Commit(ctx, put("/0", "v"))
			must(t, err)
			must(t, m.Arm(ctx, faultpoint.LogAfterSync, 3))
			acknowledged := 1
			for ; acknowledged < 10; acknowledged++ {
				if _, err := m.Commit(ctx, put(fmt.Sprintf("/%d", acknowledged), "v")); err != nil {
					if !errors.Is(err, ErrGone) {
						t.Fatal(err)
					}
					break
				}
			}
			state, err := m.Exited(ctx)
			must(t, err)
			if status := state.Sys().(syscall.WaitStatus); !status.Signaled() || acknowledged != 3 {
				t.Errorf("%v after %d writes", state, acknowledged)
			}
			must(t, m.Arm(ctx, faultpoint.LogBeforeSync, 1))
			err = m.Start(ctx)
			if err != nil && !errors.Is(err, ErrGone) {
				t.Errorf("the armed point in the start: %v", err)
			}
			await.True(t, "the member has ended", func() bool { return !m.Running() })
			must(t, m.Start(ctx))
			items, _, err := m.List(ctx, member.ListArgs{Prefix: "/"})
			if err != nil || len(items) < acknowledged {
				t.Errorf("%d keys, %v", len(items), err)
			}
		})
	}
}

// TestKillAtEachPoint kills one of three members at each point that it comes to in its work, in a
// start with another kind of log, and in that of a new server. The others go on, and it has
// everything afterwards. The other points have a test in process: see docs/testing.md.
func TestKillAtEachPoint(t *testing.T) {
	logStores := []string{"boltdb", "wal"}
	if testing.Short() {
		logStores = logStores[:1]
	}
	for _, logStore := range logStores {
		t.Run(logStore, func(t *testing.T) {
			g, _ := newTestGroup(t, Config{Size: 3, Options: member.Options{LogStore: logStore, TrailingLogs: 5}})
			ctx, cancel := context.WithTimeout(t.Context(), 5*patience) // there are fifteen starts
			defer cancel()
			must(t, g.AwaitVoters(ctx, g.Members()...))
			written := 0
			// write repeats a write that an election has prevented, or may have.
			write := func(times int) {
				t.Helper()
				for range times {
					must(t, poll(ctx, "a write", func(ctx context.Context) (bool, error) {
						leader, err := g.AwaitLeader(ctx)
						if err != nil {
							return false, err
						}
						_, err = leader.Commit(ctx, put(fmt.Sprintf("/%d", written), "v"))
						if err != nil && !errors.Is(err, raftstore.ErrUnavailable) &&
							!errors.Is(err, raftstore.ErrUnknownOutcome) && !errors.Is(err, ErrGone) &&
							!errors.Is(err, ErrDown) {
							t.Fatal(err)
						}
						return err == nil, err
					}))
					written++
				}
			}
			has := func(m *Member, after string) {
				t.Helper()
				items, _, err := m.List(ctx, member.ListArgs{Prefix: "/"})
				if err != nil || len(items) != written {
					t.Fatalf("%s: %s has %d keys, want %d: %v", after, m.Name, len(items), written, err)
				}
			}
			// follower returns a member that has everything, and another one that leads.
			follower := func(after string) (leader, m *Member) {
				t.Helper()
				must(t, g.AwaitVoters(ctx, g.Members()...))
				write(10) // more than stays in the log after a snapshot
				leader, err := g.AwaitLeader(ctx)
				must(t, err)
				m = g.Members()[(leader.Index+1)%3]
				has(m, after)
				return leader, m
			}
			// These give a member a reason to come to a point. It may be the wrong moment for it,
			// and the member may be killed in the middle, so that errors say nothing: whether it
			// comes there does.
			elect := func(m *Member) error {
				leader, err := g.AwaitLeader(ctx)
				if err != nil {
					return err
				}
				next := m
				if leader == m { // one that votes comes there as well as one that is elected
					next = g.Members()[(m.Index+1)%3]
				}
				return leader.Change(ctx, member.Change{Kind: member.Transfer, ID: next.ID()})
			}
			snapshot := func(m *Member) error {
				write(10) // a snapshot needs new entries
				return m.Change(ctx, member.Change{Kind: member.Snapshot})
			}
			one := func(*Member) error { write(1); return nil }
			after := "at the beginning"
			for _, at := range []struct {
				point   string
				hit     int
				provoke func(m *Member) error
			}{
				{faultpoint.LogBeforeSync, 1, one},
				{faultpoint.LogAfterSync, 1, one},
				{faultpoint.TermBeforeSync, 1, elect},
				{faultpoint.TermAfterSync, 1, elect},
				{faultpoint.VoteBeforeSync, 1, elect}, // the term of the vote
				{faultpoint.VoteAfterSync, 1, elect},
				{faultpoint.VoteBeforeSync, 2, elect}, // of the elected server
				{faultpoint.VoteAfterSync, 2, elect},
				{faultpoint.SnapshotBeforeSync, 1, snapshot},
				{faultpoint.SnapshotBeforeRename, 1, snapshot},
				{faultpoint.SnapshotAfterRename, 1, snapshot},
				{faultpoint.LogBeforeTruncate, 1, snapshot},
				{faultpoint.LogAfterTruncate, 1, snapshot},
			} {
				_, m := follower(after)
				must(t, m.Arm(ctx, at.point, at.hit))
				state, err := killedAt(ctx, m, at.provoke)
				if err != nil {
					t.Fatalf("%s does not come to %s, hit %d: %v", m.Name, at.point, at.hit, err)
				}
				if status := state.Sys().(syscall.WaitStatus); !status.Signaled() ||
					status.Signal() != syscall.SIGKILL {
					t.Fatalf("at %s: %v", at.point, state)
				}
				write(1)
				must(t, m.Start(ctx))
				after = fmt.Sprintf("after %s, hit %d", at.point, at.hit)
				has(m, after)
			}
			for _, point := range []string{faultpoint.LogBeforeSwitch, faultpoint.LogAfterSwitch} {
				_, m := follower(after)
				must(t, m.Kill())
				g.cfg.Options.LogStore = map[string]string{"boltdb": "wal", "wal": "boltdb"}[g.cfg.Options.LogStore]
				must(t, m.Arm(ctx, point, 1))
				if err := m.Start(ctx); !errors.Is(err, ErrGone) {
					t.Fatalf("%s in a start: %v", point, err)
				}
				write(1)
				must(t, m.Start(ctx))
				after = "after " + point
				has(m, after)
			}
			for _, point := range []string{faultpoint.IdentityBeforeRename, faultpoint.IdentityAfterRename} {
				leader, m := follower(after)
				must(t, m.Kill())
				remove(t, ctx, leader, m)
				must(t, m.Wipe())
				must(t, m.Arm(ctx, point, 1))
				if err := m.Start(ctx); !errors.Is(err, ErrGone) {
					t.Fatalf("%s in the start of a new server: %v", point, err)
				}
				must(t, m.Start(ctx))
				must(t, m.Join(ctx))
				after = "after " + point
				must(t, g.AwaitVoters(ctx, g.Members()...))
				has(m, after)
			}
		})
	}
}

// killedAt gives a member a reason to come to the point at which it is to end, again and again
// until it has ended.
func killedAt(ctx context.Context, m *Member, provoke func(*Member) error) (*os.ProcessState, error) {
	const nudge = 2 * time.Second // time for a reason to have its effect
	for end := time.Now().Add(patience); ; {
		provoked := provoke(m)
		waiting, cancel := context.WithTimeout(ctx, nudge) // brief: then it is given another one
		state, err := m.Exited(waiting)
		cancel()
		if err == nil {
			return state, nil
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return nil, errors.Join(err, provoked)
		}
	}
}

func TestKillAndStart(t *testing.T) {
	g, ctx := newTestGroup(t, Config{Size: 3})
	leader, err := g.AwaitLeader(ctx)
	must(t, err)
	must(t, leader.Kill())
	if _, err := leader.Commit(ctx, put("/k", "v")); !errors.Is(err, ErrDown) {
		t.Fatalf("a commit on a dead member: %v", err)
	}
	next, err := g.AwaitLeader(ctx)
	must(t, err)
	if next == leader {
		t.Fatal("the dead member leads")
	}
	r, err := next.Commit(ctx, put("/k", "v"))
	must(t, err)
	id := leader.ID()
	must(t, leader.Start(ctx))
	if _, _, revision, err := leader.Get(ctx, "/k", raftstore.ViewOptions{}); err != nil || revision < r.Revision ||
		leader.ID() != id {
		t.Fatalf("revision %d, ID %s, %v", revision, leader.ID(), err)
	}
	must(t, leader.Stop(ctx))
	remove(t, ctx, next, leader)
	must(t, leader.Wipe())
	must(t, leader.Start(ctx))
	must(t, leader.Join(ctx))
	must(t, g.AwaitVoters(ctx, g.Members()...))
	if leader.ID() == id {
		t.Error("a server with an empty directory has the ID of the old one")
	}
}

// TestLinks shuts the leader's links, one way and both.
func TestLinks(t *testing.T) {
	g, ctx := newTestGroup(t, Config{Size: 3, Links: true})
	for _, both := range []bool{true, false} {
		leader, err := g.AwaitLeader(ctx)
		must(t, err)
		for _, m := range g.Members() {
			if m != leader {
				g.Shut(leader, m)
				if both {
					g.Shut(m, leader)
				}
			}
		}
		must(t, poll(ctx, "another member leads", func(ctx context.Context) (bool, error) {
			next, err := g.AwaitLeader(ctx)
			return next != leader, err
		}))
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond) // brief: the test wants the time-out
		if _, err := leader.Commit(short, put("/k", "v")); err == nil {
			t.Error("the member that is cut off commits")
		}
		cancel()
		g.Heal()
		_, err = leader.Commit(ctx, put("/k", "v"))
		must(t, err)
	}
	for _, m := range g.Members() {
		for _, other := range g.Members() {
			if m != other {
				g.Delay(m, other, 20*time.Millisecond)
			}
		}
	}
	_, err := g.Members()[0].Commit(ctx, put("/k", "first"))
	must(t, err)
	start := time.Now()
	_, err = g.Members()[0].Commit(ctx, put("/k", "late"))
	must(t, err)
	if took := time.Since(start); took < 40*time.Millisecond {
		t.Errorf("a write took %v over links of 20 ms each way", took)
	}
}

// TestPower cuts the power of a group, twice. Its acknowledged writes are there; bytes that were
// written to the disk and not synced are not.
func TestPower(t *testing.T) {
	g, ctx := newTestGroup(t, Config{Size: 1, DiskMegabytes: 64})
	m := g.Members()[0]
	for i := range 20 {
		_, err := m.Commit(ctx, put(fmt.Sprintf("/%d", i), "v"))
		must(t, err)
	}
	acknowledged := func() {
		t.Helper()
		must(t, m.Start(ctx))
		if items, _, err := m.List(ctx, member.ListArgs{Prefix: "/"}); err != nil || len(items) != 20 {
			t.Fatalf("%d of 20 keys, %v", len(items), err)
		}
	}
	must(t, m.CutPower())
	acknowledged()
	// A sync of any file syncs the names of all: the member syncs every few seconds, and the kernel
	// by itself some time after a name was written. So the member is stopped, and the kernel waits
	// minutes, which begin with this file.
	must(t, m.Pause())
	must(t, m.onDisk(func(d *disk.Disk) error { return d.CommitEvery(300) }))
	must(t, m.Files(func(dir string) error {
		err := syncDir(dir)
		return errors.Join(err, os.WriteFile(filepath.Join(dir, "unsynced"), []byte("x"), 0o600))
	}))
	must(t, m.CutPower())
	must(t, m.Files(func(dir string) error {
		if _, err := os.Stat(filepath.Join(dir, "unsynced")); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("a file that was not synced: %v", err)
		}
		return nil
	}))
	acknowledged()
	must(t, m.Fill())
	// The member's reserve may take the first of them.
	refused := false
	for i := 0; i < 16 && !refused; i++ {
		_, err := m.Commit(ctx, put(fmt.Sprintf("/big%d", i), string(make([]byte, 1<<20))))
		if refused = errors.Is(err, raftstore.ErrUnavailable); !refused {
			must(t, err)
		}
	}
	if !refused {
		t.Error("16 MiB fit on a full disk")
	}
	must(t, m.Free())
	must(t, poll(ctx, "a write with room again", func(ctx context.Context) (bool, error) {
		_, err := m.Commit(ctx, put("/after", "v"))
		return err == nil, err
	}))
}

// syncDir makes the names in a directory last.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// TestPause stops a member for longer than an election takes.
func TestPause(t *testing.T) {
	g, ctx := newTestGroup(t, Config{Size: 3})
	leader, err := g.AwaitLeader(ctx)
	must(t, err)
	must(t, leader.Pause())
	rest := g.Members()[(leader.Index+1)%3]
	r, err := rest.Commit(ctx, put("/k", "v"))
	must(t, err)
	must(t, leader.Continue())
	if _, _, revision, err := leader.Get(ctx, "/k", raftstore.ViewOptions{}); err != nil || revision < r.Revision {
		t.Fatalf("the one that was paused reads at revision %d, %v", revision, err)
	}
}

// TestKeep: a kept directory outlives its group, as a failed run needs it.
func TestKeep(t *testing.T) {
	g, ctx := newTestGroup(t, Config{Size: 1})
	_, err := g.Members()[0].Commit(ctx, put("/k", "v"))
	must(t, err)
	kept, err := g.Keep()
	must(t, err)
	must(t, g.Close())
	if _, err := os.Stat(filepath.Join(kept, "s0", "data", "server.json")); err != nil {
		t.Error(err)
	}
	must(t, os.RemoveAll(kept))
}

// TestKilledDriver kills a driver, and looks for its members, its mounts and its files.
func TestKilledDriver(t *testing.T) {
	parent := t.TempDir()
	pids := runDriver(t, parent)
	if len(pids) != 2 {
		t.Fatalf("the driver had the members %v", pids)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, pid := range pids {
		must(t, poll(ctx, fmt.Sprintf("member %d is gone", pid), func(context.Context) (bool, error) {
			return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH), nil
		}))
	}
	left, err := filepath.Glob(filepath.Join(parent, dirPattern+"*"))
	if err != nil || len(left) != 1 {
		t.Fatalf("directories of the driver: %v, %v", left, err)
	}
	old := time.Now().Add(-2 * young)
	must(t, os.Chtimes(left[0], old, old))
	must(t, sweep(parent))
	if left, _ := filepath.Glob(filepath.Join(parent, "*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestDisksOfOthers: a disk of another program that was mounted when the group began can be
// unmounted, and used again, while the members run.
func TestDisksOfOthers(t *testing.T) {
	needs.NoError(t, DisksPossible(), "groups with disks of their own beside other programs that have some")
	dir := t.TempDir()
	other, err := disk.New(filepath.Join(dir, "image"), filepath.Join(dir, "mount"), 8)
	must(t, err)
	attached := true
	t.Cleanup(func() {
		if attached {
			must(t, other.Detach())
		}
	})
	newTestGroup(t, Config{Size: 1, DiskMegabytes: 64})
	must(t, other.Detach())
	attached = false
	must(t, other.Attach()) // it waits until the disk has no user any more
	attached = true
}

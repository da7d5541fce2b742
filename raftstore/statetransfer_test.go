package raftstore_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/syncbuf"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/faultpoint"
	"github.com/barque/barque/raftstore/storetest"
)

// healing is a cluster on disk whose servers report that they have got a right state.
type healing struct {
	*storetest.Cluster
	log   syncbuf.Buffer
	ready chan int

	mu    sync.Mutex
	fault func(server int, point string)
}

func newHealing(t *testing.T, root string) *healing {
	r := &healing{ready: make(chan int, 10)}
	r.Cluster = storetest.NewCluster(t, 3, func(i int, cfg *raftstore.Config) {
		cfg.InMemory, cfg.Dir = false, filepath.Join(root, fmt.Sprint(i))
		unhurried(i, cfg)
		cfg.OnNewState = func() { r.ready <- i }
		cfg.Logger = slog.New(slog.NewTextHandler(&r.log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		cfg.FaultPoint = func(point string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.fault != nil {
				r.fault(i, point)
			}
		}
	})
	return r
}

// spoil gives a server a wrong state and has it found.
func (r *healing) spoil(t *testing.T, bad int, marker string) {
	t.Helper()
	leader, _ := r.Leader()
	if _, err := r.Servers[leader].Commit(limited(t), put("/before/"+marker, "")); err != nil {
		t.Fatal(err)
	}
	steady(r.Cluster)
	corrupt(t, r.Servers[bad], marker)
	r.Await("it is found", func() bool { return r.Servers[bad].Status().Quarantined != "" })
}

// reopen waits until a server has a right state and opens it again, as the program around it does.
func (r *healing) reopen(t *testing.T, bad int) {
	t.Helper()
	select {
	case i := <-r.ready:
		if i != bad {
			t.Fatalf("server %d says that it has a right state", i)
		}
	case <-time.After(time.Minute):
		t.Fatalf("no right state: %s", r.log.String())
	}
	r.Stop(bad)
	r.Start(bad)
}

// wellAgain checks that a server serves the state of the others, and is compared with them.
func (r *healing) wellAgain(t *testing.T, bad int) {
	t.Helper()
	if why := r.Servers[bad].Status().Quarantined; why != "" {
		t.Fatalf("still in quarantine: %s", why)
	}
	result, err := r.Servers[bad].Commit(limited(t), put("/after", ""))
	if err != nil {
		t.Fatalf("a write by it: %v", err)
	}
	if got := contents(t, r.Servers[bad].Store); got["/wrong"] != "" {
		t.Errorf("it still shows what is wrong: %v", got)
	}
	steady(r.Cluster)
	<-time.After(2 * onePeriod)
	leader, _ := r.Leader()
	if s := r.Servers[leader].Status(); s.Compared < result.Revision || s.Undecided != "" {
		t.Errorf("compared up to %d, it wrote at %d: %s", s.Compared, result.Revision, s.Undecided)
	}
	if why := r.Servers[bad].Status().Quarantined; why != "" {
		t.Errorf("in quarantine again: %s", why)
	}
}

func TestServerThatDiffersGetsARightState(t *testing.T) {
	root := t.TempDir()
	for name, ofLeader := range map[string]bool{"a follower": false, "the leader": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newHealing(t, filepath.Join(root, name))
				bad, _ := r.Leader()
				if !ofLeader {
					bad = (bad + 1) % 3
				}
				id := r.Servers[bad].ID()
				r.spoil(t, bad, "first")
				checkServesNothing(t, r.Servers[bad])
				r.reopen(t, bad)
				r.wellAgain(t, bad)
				if r.Servers[bad].ID() != id || len(r.Servers[bad].Members()) != 3 {
					t.Errorf("it was %s and is %s; members %+v", id, r.Servers[bad].ID(), r.Servers[bad].Members())
				}
				if !strings.Contains(r.log.String(), "has got a right state from the leader") {
					t.Errorf("it does not say so: %s", r.log.String())
				}
				dir := r.Configs[bad].Dir
				if info, err := os.Stat(filepath.Join(dir, "quarantined.snapshot")); err != nil || info.Size() == 0 {
					t.Errorf("the wrong state is not kept: %v", err)
				}
				if _, err := os.Stat(filepath.Join(dir, "seed")); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("the plan is still there: %v", err)
				}
				// The second time in a day it does not help itself.
				r.spoil(t, bad, "second")
				<-time.After(time.Minute)
				select {
				case <-r.ready:
					t.Error("it took another state at once")
				default:
				}
				if !strings.Contains(r.log.String(), "stays in quarantine: look for a fault") {
					t.Errorf("it does not say what to do: %s", r.log.String())
				}
			})
		})
	}
}

// TestStateTransferSurvivesCrashes copies the directory at each step, as a crash there would leave
// it, and opens the server from each copy.
func TestStateTransferSurvivesCrashes(t *testing.T) {
	for _, point := range []string{faultpoint.TransferWritten, faultpoint.TransferInstalled,
		faultpoint.TransferUnmarked} {
		t.Run(point, func(t *testing.T) {
			root := t.TempDir()
			left := filepath.Join(root, "left")
			synctest.Test(t, func(t *testing.T) {
				r := newHealing(t, root)
				leader, _ := r.Leader()
				bad := (leader + 1) % 3
				r.mu.Lock()
				r.fault = func(i int, at string) {
					if i == bad && at == point {
						if err := os.CopyFS(left, os.DirFS(r.Configs[bad].Dir)); err != nil &&
							!errors.Is(err, fs.ErrExist) {
							t.Error(err)
						}
					}
				}
				r.mu.Unlock()
				r.spoil(t, bad, "crash")
				r.reopen(t, bad)
				r.Stop(bad)
				r.mu.Lock()
				r.fault = nil
				r.mu.Unlock()
				if _, err := r.Servers[leader].Commit(limited(t), put("/meanwhile", "")); err != nil {
					t.Fatal(err)
				}
				r.Configs[bad].Dir = left
				r.Start(bad)
				marked := r.Servers[bad].Status().Quarantined != ""
				if marked != (point != faultpoint.TransferUnmarked) {
					t.Errorf("in quarantine after the crash: %v", marked)
				} else if marked {
					r.reopen(t, bad)
				}
				r.wellAgain(t, bad)
			})
		})
	}
}

// TestDamagedStateIsNotTaken damages the state that the leader has on disk: it is not taken.
func TestDamagedStateIsNotTaken(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := newHealing(t, root)
		leader, _ := r.Leader()
		bad := (leader + 1) % 3
		r.mu.Lock()
		damaged := false
		r.fault = func(i int, at string) {
			if i != leader || at != faultpoint.SnapshotAfterRename || damaged {
				return
			}
			damaged = true
			states, err := filepath.Glob(filepath.Join(r.Configs[leader].Dir, "snapshots", "*", "state.bin"))
			for _, path := range states {
				data, read := os.ReadFile(path)
				if read == nil {
					data = bytes.Clone(data)
					data[len(data)/2] ^= 1
					read = os.WriteFile(path, data, 0o600)
				}
				err = errors.Join(err, read)
			}
			if err != nil || len(states) == 0 {
				t.Errorf("%d states, %v", len(states), err)
			}
		}
		r.mu.Unlock()
		r.spoil(t, bad, "damaged")
		<-time.After(10 * time.Second)
		if !damaged || !strings.Contains(r.log.String(), "verify the leader's state") {
			t.Errorf("the damage was not found: %s", r.log.String())
		}
		// A later snapshot of the leader is whole.
		if _, err := r.Servers[leader].Commit(limited(t), put("/more", "")); err != nil {
			t.Fatal(err)
		}
		r.reopen(t, bad)
		r.wellAgain(t, bad)
	})
}

// TestTransferOfAnEarlierVersion starts a server with the files that an earlier version left when
// it was killed in a transfer: the state in a directory with a plan, and no snapshot yet, though
// the log begins after the first entry.
func TestTransferOfAnEarlierVersion(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := newHealing(t, root)
		leader, _ := r.Leader()
		bad := (leader + 1) % 3
		r.Configs[bad].TrailingLogs = 1
		r.Stop(bad)
		r.Start(bad)
		for i := range 3 { // the log reaches back to the older of two
			if _, err := r.Servers[leader].Commit(limited(t), put("/k", fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
			steady(r.Cluster)
			if err := r.Servers[bad].Snapshot(); err != nil {
				t.Fatal(err)
			}
		}
		r.Stop(bad)

		dir := r.Configs[bad].Dir
		snapshots, err := filepath.Glob(filepath.Join(dir, "snapshots", "*"))
		if err != nil || len(snapshots) != 2 {
			t.Fatalf("snapshots %q, %v", snapshots, err)
		}
		var meta struct {
			Meta json.RawMessage `json:"meta"`
		}
		data, err := os.ReadFile(filepath.Join(snapshots[1], "meta.json"))
		err = errors.Join(err, json.Unmarshal(data, &meta),
			os.Mkdir(filepath.Join(dir, "seed"), 0o700),
			os.Rename(filepath.Join(snapshots[1], "state.bin"), filepath.Join(dir, "seed", "state.bin")),
			os.WriteFile(filepath.Join(dir, "seed", "meta.json"), meta.Meta, 0o600),
			os.RemoveAll(snapshots[0]), os.RemoveAll(snapshots[1]),
			os.WriteFile(filepath.Join(dir, "quarantine.json"), []byte(`{"reason": "an earlier version found it"}`),
				0o600),
			os.WriteFile(filepath.Join(dir, "reseeded.json"),
				fmt.Appendf(nil, `{"at": %q}`, time.Now().Format(time.RFC3339)), 0o600))
		if err != nil {
			t.Fatal(err)
		}
		r.Start(bad)
		if why := r.Servers[bad].Status().Quarantined; why != "an earlier version found it" {
			t.Errorf("in quarantine: %q", why)
		}
		r.reopen(t, bad)
		r.wellAgain(t, bad)
		if _, err := os.Stat(filepath.Join(dir, "seed")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the plan is still there: %v", err)
		}
	})
}

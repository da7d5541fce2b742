package raftstore_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// TestOneProcessForADirectory opens a directory that a server has open. The second one must touch
// nothing before it has the directory to itself: here, it would find a plan to replace the state,
// and carry it out.
func TestOneProcessForADirectory(t *testing.T) {
	disk := onDisk(t)
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 1, disk)
		if _, err := c.Servers[0].Commit(limited(t), put("/a", "1")); err != nil {
			t.Fatal(err)
		}
		if err := c.Servers[0].Snapshot(); err != nil {
			t.Fatal(err)
		}
		dir := c.Configs[0].Dir
		mark, plan := filepath.Join(dir, "quarantine.json"), filepath.Join(dir, "seed", "meta.json")
		if err := os.MkdirAll(filepath.Dir(plan), 0o700); err != nil {
			t.Fatal(err)
		}
		for path, content := range map[string]string{mark: `{"reason": "test"}`, plan: `{"Version": 1, "Index": 1}`} {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cfg := c.Configs[0]
		cfg.Stream = new(memnet.Network).Host("other")
		if s, err := raftstore.Open(cfg); err == nil || !strings.Contains(err.Error(), "in use") ||
			!strings.Contains(err.Error(), dir) {
			t.Fatalf("a second server: %v, %v", s, err)
		}
		if report, err := raftstore.Inspect(dir, nil); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("a look at it: %+v, %v", report, err)
		}
		for _, path := range []string{mark, plan} {
			if err := os.Remove(path); err != nil { // it must be there
				t.Error(err)
			}
		}
		if _, err := c.Servers[0].Commit(limited(t), put("/b", "2")); err != nil {
			t.Errorf("the first server: %v", err)
		}

		// One that is about to end is waited for. The next one finds all that it writes until then.
		opened := make(chan error, 1)
		go func() {
			s, err := raftstore.Open(cfg)
			if err == nil {
				if found := s.Status().Start.SnapshotRevision; found != 3 {
					t.Errorf("it found a snapshot of revision %d, want 3", found)
				}
				s.Close()
			}
			opened <- err
		}()
		<-time.After(time.Second)
		if _, err := c.Servers[0].Commit(limited(t), put("/c", "3")); err != nil {
			t.Error(err)
		}
		if err := c.Servers[0].Snapshot(); err != nil {
			t.Error(err)
		}
		c.Stop(0)
		if err := <-opened; err != nil {
			t.Errorf("after the first one has ended: %v", err)
		}
	})
}

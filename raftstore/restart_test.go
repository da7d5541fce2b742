package raftstore_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/logstore"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// flip changes one byte in the middle of a file.
func flip(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 0x20
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestRestartWithDamagedSnapshots: an older snapshot does while the log connects to it; else the
// error names the missing part.
func TestRestartWithDamagedSnapshots(t *testing.T) {
	for _, kind := range []string{"boltdb", "wal"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				open := func() (*raftstore.Server, error) {
					return raftstore.Open(raftstore.Config{
						Dir: dir, Bootstrap: true, Stream: new(memnet.Network).Host("alone"), LogStore: kind,
						TrailingLogs: 5,
					})
				}
				s, err := open()
				if err != nil {
					t.Fatal(err)
				}
				written := 0
				write := func() {
					for range 50 {
						if _, err := s.Commit(limited(t), put(fmt.Sprintf("/%d", written), "v")); err != nil {
							t.Fatal(err)
						}
						written++
					}
				}
				reopen := func(damaged int) {
					t.Helper()
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					if s, err = open(); err != nil {
						t.Fatal(err)
					}
					v, err := s.View(limited(t), raftstore.ViewOptions{})
					if err != nil || v.Count("/", "") != written {
						t.Fatalf("%d of %d keys: %v", v.Count("/", ""), written, err)
					}
					start := s.Status().Start
					if len(start.Damaged) != damaged || start.Snapshot == 0 || start.SnapshotRevision == 0 ||
						start.Replayed == 0 ||
						start.SnapshotTaken.IsZero() || string(start.Log.Kind) != kind || start.Log.Last == 0 {
						t.Errorf("it says that it read %+v", start)
					}
				}
				for range 3 {
					write()
					if err := s.Snapshot(); err != nil {
						t.Fatal(err)
					}
				}
				write()
				reopen(0)
				newest := s.Status().Start
				flip(t, newest.SnapshotPath)
				reopen(1)
				older := s.Status().Start
				if older.Snapshot >= newest.Snapshot || older.Damaged[0] != newest.SnapshotPath {
					t.Errorf("after %+v it read %+v", newest, older)
				}
				if err := s.Snapshot(); err != nil { // which is whole, and makes two with the older one
					t.Fatal(err)
				}
				write()
				reopen(0)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				snapshots, err := filepath.Glob(filepath.Join(dir, "snapshots", "*"))
				if err != nil || len(snapshots) != 2 {
					t.Fatalf("%q, %v", snapshots, err)
				}
				flip(t, filepath.Join(snapshots[0], "meta.json"))
				flip(t, filepath.Join(snapshots[1], "state.bin"))
				_, err = open()
				var damage *logstore.CorruptError
				if !errors.As(err, &damage) || !strings.Contains(err.Error(), "there is no valid snapshot") ||
					!strings.Contains(err.Error(), dir) {
					t.Errorf("without a valid snapshot: %v", err)
				}
			})
		})
	}
}

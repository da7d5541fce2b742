package raftstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/faultpoint"
	"github.com/barque/barque/raftstore/storetest"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// ballast fills a volume but for some bytes, as another program would.
func ballast(t *testing.T, dir string, but int64) (path string) {
	t.Helper()
	path = filepath.Join(dir, "ballast")
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if size := int64(fs.Bavail)*fs.Bsize - but; size > 0 {
		if err := unix.Fallocate(int(file.Fd()), 0, 0, size); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// TestFullDisk fills the disk under a server, which must report it, must not crash, must keep the
// acknowledged writes, must still read, delete, shorten its log, stop and start, and must go on
// when there is room again.
func TestFullDisk(t *testing.T) {
	cases := []struct{ kind, size string }{{"boltdb", "24m"}, {"wal", "96m"}}
	if testing.Short() {
		cases = cases[:1]
	}
	for _, c := range cases {
		t.Run(c.kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := storetest.SmallVolume(t, c.size)
				open := func() *raftstore.Server {
					s, err := raftstore.Open(raftstore.Config{
						Dir: filepath.Join(dir, "store"), Bootstrap: true, Stream: new(memnet.Network).Host("alone"),
						LogStore: c.kind,
					})
					if err != nil {
						t.Fatal(err)
					}
					return s
				}
				s := open()
				value := strings.Repeat("v", 32<<10)
				acknowledged := 0
				write := func() error {
					_, err := s.Commit(limited(t), put(fmt.Sprintf("/%d", acknowledged), value))
					if err == nil {
						acknowledged++
					}
					return err
				}
				for range 20 {
					if err := write(); err != nil {
						t.Fatal(err)
					}
				}
				heavy := ballast(t, dir, 1<<20)
				var err error
				for err == nil {
					err = write()
				}
				t.Logf("after %d writes: %v", acknowledged, err)
				if !errors.Is(err, raftstore.ErrUnavailable) ||
					!strings.Contains(err.Error(), "disk of this server is full") {
					t.Fatalf("a write on a full disk: %v", err)
				}
				if status := s.Status(); !status.DiskFull {
					t.Errorf("it says %+v", status)
				}
				if err := s.Ready(limited(t)); err != nil { // reads and deletions are served, and are the way out
					t.Errorf("a server with a full disk is not ready: %v", err)
				}
				check := func(gone int) {
					t.Helper()
					v, err := s.View(limited(t), raftstore.ViewOptions{})
					if err != nil {
						t.Fatal(err)
					}
					for i := range acknowledged {
						if _, ok := v.Get(fmt.Sprintf("/%d", i)); ok != (i >= gone) {
							t.Fatalf("write %d of %d: %v", i, acknowledged, ok)
						}
					}
				}
				remove := func(i int) {
					t.Helper()
					_, err := s.Commit(limited(t),
						raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Delete, Key: fmt.Sprintf("/%d", i)}}})
					if err != nil {
						t.Fatalf("a deletion on a full disk: %v", err)
					}
				}
				check(0)
				remove(0)
				if err := s.Snapshot(); err != nil {
					t.Errorf("a snapshot on a full disk: %v", err)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				ballast(t, dir, 0)
				s = open()
				if status := s.Status(); !status.DiskFull {
					t.Errorf("after a start on a full disk it says %+v", status)
				}
				check(1)
				remove(1)
				if err := os.Remove(heavy); err != nil {
					t.Fatal(err)
				}
				await.True(t, "the disk has room again", func() bool { return !s.Status().DiskFull })
				// A write that failed for real costs a leader its leadership for a moment.
				await.NoError(t, "a write with room again", func(context.Context) error { return write() })
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				s = open()
				check(2)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// TestALogThatNeedsRoomGetsThatOfASnapshot: when a snapshot that is being written has taken the
// last byte, the entries for the log are written, and the snapshot is for another time.
func TestALogThatNeedsRoomGetsThatOfASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := storetest.SmallVolume(t, "24m")
		var s *raftstore.Server
		var meanwhile func()
		s, err := raftstore.Open(raftstore.Config{
			Dir: filepath.Join(dir, "store"), Bootstrap: true, Stream: new(memnet.Network).Host("alone"),
			DiskReserve: -1,
			FaultPoint: func(name string) {
				if name == faultpoint.SnapshotBeforeSync && meanwhile != nil {
					meanwhile()
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		random := rand.NewChaCha8([32]byte{})
		write := func(key string, size int) error {
			value := make([]byte, size) // nothing makes it smaller
			random.Read(value)
			_, err := s.Commit(limited(t), put(key, string(value)))
			return err
		}
		for i := range 60 {
			if err := write(fmt.Sprintf("/%d", i), 50<<10); err != nil {
				t.Fatal(err)
			}
		}
		var written error
		meanwhile = func() {
			ballast(t, dir, 0)
			written = write("/large", 1400<<10)
		}
		if err := s.Snapshot(); err == nil || !strings.Contains(err.Error(), "abandoned") {
			t.Errorf("the snapshot: %v", err)
		}
		if written != nil {
			t.Errorf("a write while the snapshot has the last of the disk: %v", written)
		}
		meanwhile = nil
		if err := os.Remove(filepath.Join(dir, "ballast")); err != nil {
			t.Fatal(err)
		}
		if err := s.Snapshot(); err != nil {
			t.Errorf("with room again: %v", err)
		}
	})
}

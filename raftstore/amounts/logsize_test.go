package amounts

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// TestALogThatHasGrownGetsSmall: a burst of writes makes the file of the log large. When a snapshot
// has these writes, the file gives the room back, while the server runs, and nothing is lost.
func TestALogThatHasGrownGetsSmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		open := func() *raftstore.Server {
			s, err := raftstore.Open(raftstore.Config{
				Dir: dir, Bootstrap: true, Stream: new(memnet.Network).Host("alone"), DiskReserve: -1,
				SnapshotEvery: 1 << 20, TrailingLogs: 10,
			})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		size := func() int64 {
			files, err := filepath.Glob(filepath.Join(dir, "log", "boltdb-*"))
			if err != nil || len(files) != 1 {
				t.Fatalf("%q, %v", files, err)
			}
			info, err := os.Stat(files[0])
			if err != nil {
				t.Fatal(err)
			}
			return info.Size()
		}
		s := open()
		defer func() { s.Close() }()
		random := rand.NewChaCha8([32]byte{})
		const values, bytes = 100, 1 << 20
		for i := range values {
			value := make([]byte, bytes)
			random.Read(value)
			if _, err := s.Commit(await.Context(t), put(fmt.Sprintf("/%d", i%10), string(value))); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // the log reaches back to the older one of two snapshots
			for i := range 20 {
				if _, err := s.Commit(await.Context(t), put(fmt.Sprintf("/small/%d", i), "v")); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Snapshot(); err != nil {
				t.Fatal(err)
			}
		}
		large := size()
		if large < values*bytes {
			t.Fatalf("after %d bytes the file has %d", values*bytes, large)
		}
		<-time.After(2 * time.Minute)
		small := size()
		if small > large/8 {
			t.Errorf("the file had %d bytes and has %d", large, small)
		}
		for range 2 {
			v, err := s.View(await.Context(t), raftstore.ViewOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if n := v.Count("/", ""); n != 30 {
				t.Errorf("%d items are left", n)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open()
		}
		t.Logf("%d bytes, and then %d", large, small)
	})
}

package amounts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// TestDeletingMakesRoom fills the disk by the store's own writes. It must say that no server can
// take over, take deletions, and go on by itself when these have made room, without a restart.
func TestDeletingMakesRoom(t *testing.T) {
	cases := []struct{ kind, size string }{{"boltdb", "48m"}, {"wal", "160m"}}
	if testing.Short() {
		cases = cases[:1]
	}
	for _, c := range cases {
		t.Run(c.kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := raftstore.Open(raftstore.Config{
					Dir: filepath.Join(storetest.SmallVolume(t, c.size), "store"), Bootstrap: true,
					Stream: new(memnet.Network).Host("alone"), LogStore: c.kind,
				})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				random := rand.NewChaCha8([32]byte{})
				write := func(key string) error {
					value := make([]byte, 300<<10) // nothing makes it smaller
					random.Read(value)
					_, err := s.Commit(await.Context(t), put(key, string(value)))
					return err
				}
				n := 0
				await.True(t, "the disk is full", func() bool {
					if err = write(fmt.Sprintf("/%d", n)); err == nil {
						n++
					}
					return errors.Is(err, raftstore.ErrDiskFull)
				})
				t.Logf("after %d writes: %v", n, err)
				for i := range n {
					if _, err := s.Commit(await.Context(t),
						raftstore.Txn{
							Ops: []raftstore.Op{{Kind: raftstore.Delete, Key: fmt.Sprintf("/%d", i)}}}); err != nil {
						t.Fatalf("deletion %d of %d: %v", i, n, err)
					}
				}
				began := time.Now()
				await.NoError(t, "a write after all was deleted", func(context.Context) error { return write("/new") })
				t.Logf("it takes writes again %v after all was deleted", time.Since(began).Round(time.Millisecond))
			})
		})
	}
}

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/disk"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/logstore"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// TestAStopLeavesTheLogItsRoom: the writes of a server with a full disk since it shortened its log
// took the log's own room. It gets some again when the server stops, while there is some, for the
// start after that.
func TestAStopLeavesTheLogItsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		n, err := Open(Config{
			Dir: dir, Bootstrap: true, Stream: new(memnet.Network).Host("alone"),
			// none of its writes is repeated here, so however slow the disk is it leads on
			Timeouts: group.Timeouts{DiskWrite: time.Hour},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := n.AwaitLeadership(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := n.storage.Reserve
		r.Full.Store(true)   // and the log is not shortened for that
		for i := range 500 { // 1.5 MB, in entries so small that a write to the file moves little, and frees little
			ops := []kv.Op{{Kind: kv.Delete, Key: fmt.Sprintf("/%d/%s", i, strings.Repeat("k", 3<<10))}}
			if _, err := n.Propose(t.Context(),
				&command.Request{Kind: command.KindTxn, Txn: kv.Txn{Ops: ops}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(dir, disk.LogDir, "boltdb-*"))
		if err != nil || len(files) != 1 {
			t.Fatalf("%q, %v", files, err)
		}
		blocks := func() int64 {
			info, err := os.Stat(files[0])
			if err != nil {
				t.Fatal(err)
			}
			return info.Sys().(*syscall.Stat_t).Blocks
		}
		l, err := logstore.Open(logstore.Options{Dir: filepath.Join(dir, disk.LogDir), Timeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		last, err := l.LastIndex()
		if err != nil {
			t.Fatal(err)
		}
		has := blocks()
		for i := range uint64(100) {
			if err := l.StoreLog(&raft.Log{Index: last + 1 + i, Term: 9, Data: make([]byte, 3<<10)}); err != nil {
				t.Fatal(err)
			}
		}
		if now := blocks(); now > has {
			t.Errorf("the log had %d blocks and took %d more", has, now-has)
		}
	})
}

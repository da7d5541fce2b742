package node

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/logstore"
	"github.com/barque/barque/raftstore/snapdir"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// TestSnapshotOfAnotherProcess has a process that is about to stop write a snapshot, after the next one has read
// those that were there and before it has the log.
func TestSnapshotOfAnotherProcess(t *testing.T) {
	network := new(memnet.Network)
	cfg := Config{Dir: t.TempDir(), Bootstrap: true, ClusterID: "test", Stream: network.Host("s:1"), DiskReserve: -1}
	n, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.Stream = network.Host("s:2")
	cfg.WrapLog = func(s logstore.Store) logstore.Store {
		other, err := snapdir.Open(snapdir.Options{
			Dir: filepath.Join(cfg.Dir, snapshotDir), Keep: keptSnapshots, Logger: slog.New(slog.DiscardHandler), Done: func(uint64) error { return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		sink, err := other.Create(raft.SnapshotVersionMax, 50, 1, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := sink.Close(); err != nil {
			t.Fatal(err)
		}
		return s
	}
	n, err = Open(cfg)
	if err == nil {
		t.Errorf("it starts with entry %d applied, and never saw what came before", n.Status().LastIndex)
		n.Close()
	} else if !strings.Contains(err.Error(), "start again") {
		t.Error(err)
	}
}

package disk

import (
	"errors"
	"io"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/snapdir"
)

// TestPurgeWhileASnapshotIsInstalled: a snapshot that is newer than the state is not gone by:
// nothing is removed before it is the state.
func TestPurgeWhileASnapshotIsInstalled(t *testing.T) {
	dir, err := snapdir.Open(snapdir.Options{Dir: t.TempDir(), Keep: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, index := range []uint64{10, 20} {
		sink, err := dir.Create(1, index, 1, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(sink, "state"); err != nil {
			t.Fatal(err)
		}
		if err := sink.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s := &Storage{Snapshots: dir, written: dir}
	log := raft.NewInmemStore()
	for i := uint64(5); i <= 25; i++ {
		if err := log.StoreLog(&raft.Log{Index: i}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Purge(t.Context(), log, 15); !errors.Is(err, ErrInstalling) {
		t.Errorf("%v", err)
	}
	if first, _ := log.FirstIndex(); first != 5 {
		t.Errorf("the log begins with entry %d", first)
	}
	if all, err := dir.List(); err != nil || len(all) != 2 {
		t.Errorf("%d snapshots are left, %v", len(all), err)
	}
	// At the state's own index it goes on, as far as the snapshot can be read.
	if err := s.Purge(t.Context(), log, 20); err == nil || errors.Is(err, ErrInstalling) {
		t.Errorf("%v", err)
	}
}

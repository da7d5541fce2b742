package node

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// fullDisk refuses entries while it is full.
type fullDisk struct {
	memoryLog
	full bool
}

var errFull = errors.New("no space left on device")

func (f *fullDisk) StoreLogs(entries []*raft.Log) error {
	if f.full {
		return errFull
	}
	return f.memoryLog.StoreLogs(entries)
}

// TestLogFailure: a log that cannot be written is told of until it can be written again.
func TestLogFailure(t *testing.T) {
	disk := &fullDisk{memoryLog: memoryLog{raft.NewInmemStore()}}
	log := newTimedLog(disk, time.Hour)
	for i, c := range []struct {
		full bool
		want error
	}{{false, nil}, {true, errFull}, {true, errFull}, {false, nil}} {
		disk.full = c.full
		if err := log.StoreLog(&raft.Log{Index: uint64(i + 1)}); !errors.Is(err, c.want) {
			t.Errorf("write %d: %v", i, err)
		}
		if err := log.failed(); !errors.Is(err, c.want) {
			t.Errorf("after write %d: %v", i, err)
		}
	}
}

package logstore

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// fullDisk refuses entries while it is full.
type fullDisk struct {
	Store
	full bool
}

var errFull = errors.New("no space left on device")

func (f *fullDisk) StoreLogs(entries []*raft.Log) error {
	if f.full {
		return errFull
	}
	return f.Store.StoreLogs(entries)
}

// TestLogFailure: a log that cannot be written is told of until it can be written again.
func TestLogFailure(t *testing.T) {
	disk := new(fullDisk)
	log, err := Open(Options{Timeout: time.Hour, Wrap: func(s Store) Store {
		disk.Store = s
		return disk
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		full bool
		want error
	}{{false, nil}, {true, errFull}, {true, errFull}, {false, nil}} {
		disk.full = c.full
		if err := log.StoreLog(&raft.Log{Index: uint64(i + 1)}); !errors.Is(err, c.want) {
			t.Errorf("write %d: %v", i, err)
		}
		if err := log.Err(); !errors.Is(err, c.want) {
			t.Errorf("after write %d: %v", i, err)
		}
	}
}

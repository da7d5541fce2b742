package logstore

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
)

// moody is a log whose writes fail on request.
type moody struct {
	*raft.InmemStore
	fails error
}

func (m *moody) StoreLogs(entries []*raft.Log) error {
	if m.fails != nil {
		return m.fails
	}
	return m.InmemStore.StoreLogs(entries)
}

// TestTail makes Raft's calls to a log, on a disk that is full now and then, and compares it with
// Raft's view: a failed write has changed nothing.
func TestTail(t *testing.T) {
	rnd := seeded(t)
	for range 200 {
		disk := &moody{InmemStore: raft.NewInmemStore()}
		tail := NewTail(disk, func(err error) { t.Error(err) })
		var want []*raft.Log
		term, failures := uint64(1), 0
		write := func(from int, n int) {
			var entries []*raft.Log
			for i := range n {
				entries = append(entries, &raft.Log{Index: uint64(from + i + 1), Term: term})
			}
			if from < len(want) {
				if err := tail.DeleteRange(uint64(from+1), uint64(len(want))); err != nil {
					t.Fatal(err)
				}
			}
			switch err := tail.StoreLogs(entries); {
			case err == nil:
				want = append(slices.Clone(want[:from]), entries...)
			case !errors.Is(err, disk.fails):
				t.Fatal(err)
			default:
				failures++
			}
		}
		write(0, 3)
		for range 60 {
			if disk.fails = nil; rnd.IntN(2) == 0 {
				disk.fails = syscall.ENOSPC
			}
			if rnd.IntN(3) > 0 { // a leader that has other entries, down to the first at times
				term++
				write(rnd.IntN(len(want)), 1+rnd.IntN(4))
			} else {
				write(len(want), 1+rnd.IntN(4))
			}
			if last, err := tail.LastIndex(); err != nil || last != uint64(len(want)) {
				t.Fatalf("the log ends with %d, %v, want %d", last, err, len(want))
			}
			if first, err := tail.FirstIndex(); err != nil || first != 1 {
				t.Fatalf("the log begins with %d, %v", first, err)
			}
			for i, e := range want {
				var got raft.Log
				if err := tail.GetLog(uint64(i+1), &got); err != nil || got.Term != e.Term || got.Index != e.Index {
					t.Fatalf("entry %d is %v, %v, want %v", i+1, got, err, e)
				}
			}
			// The last acknowledged entries are on disk, and all before them.
			if disk.fails == nil {
				for i, e := range want {
					var got raft.Log
					if err := disk.GetLog(uint64(i+1), &got); err != nil || got.Term != e.Term {
						t.Fatalf("entry %d is %v on disk, %v, want %v", i+1, got, err, e)
					}
				}
			}
		}
		if failures == 0 {
			t.Error("no write failed")
		}
	}
}

// TestTailAndMembers: a change of the members cannot be brought back, because Raft has forgotten
// it.
func TestTailAndMembers(t *testing.T) {
	disk := &moody{InmemStore: raft.NewInmemStore()}
	var fatal error
	tail := NewTail(disk, func(err error) { fatal = err })
	if err := tail.StoreLogs(
		[]*raft.Log{{Index: 1, Term: 1}, {Index: 2, Term: 1, Type: raft.LogConfiguration}}); err != nil {
		t.Fatal(err)
	}
	if err := tail.DeleteRange(2, 2); err != nil {
		t.Fatal(err)
	}
	disk.fails = syscall.ENOSPC
	if err := tail.StoreLog(&raft.Log{Index: 2, Term: 2}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("it was written: %v", err)
	}
	if !errors.Is(fatal, syscall.ENOSPC) {
		t.Errorf("it goes on: %v", fatal)
	}
}

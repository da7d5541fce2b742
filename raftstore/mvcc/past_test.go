package mvcc

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"weak"

	"github.com/barque/barque/raftstore/kv"
)

// TestCompactionFreesThePast: a snapshot that no reader can ask for any more may have gigabytes
// that were deleted since, and after the last write nothing else would drop it.
func TestCompactionFreesThePast(t *testing.T) {
	const pin = 16
	s := New(Limits{PinEvery: pin})
	remember := func(revision uint64) weak.Pointer[View] {
		v, err := s.At(revision)
		if err != nil {
			t.Fatal(err)
		}
		return weak.Make(v)
	}
	for i := range 2*pin + 3 {
		put(s, fmt.Sprintf("/a/%02d", i), 1)
	}
	past := map[string]weak.Pointer[View]{
		"a computed snapshot": remember(pin / 2), "the older pin": remember(pin), "the newest pin": remember(2 * pin),
	}
	kept := remember(2*pin + 1)
	runtime.GC()
	for what, v := range past {
		if v.Value() == nil {
			t.Fatalf("%s is gone, and history reaches back to it", what)
		}
	}
	s.Compact(2*pin + 1)
	s.Publish()
	runtime.GC()
	for what, v := range past {
		if v.Value() != nil {
			t.Errorf("%s is kept, and history begins later", what)
		}
	}
	if kept.Value() == nil {
		t.Error("the snapshot at which history begins is gone")
	}

	// One that was being computed while history went on is not kept, either.
	s.pins.add(&View{revision: 2 * pin})
	if v, err := s.pins.find(2 * pin); v != nil || !errors.Is(err, kv.ErrCompacted) || len(s.pins.recent) > 1 {
		t.Errorf("a snapshot that came too late: %v, %v, and %d are kept", v, err, len(s.pins.recent))
	}
	for range pin {
		s.Apply(&kv.Txn{Ops: []kv.Op{{Kind: kv.Put, Key: "/a/00", Value: []byte("x")}}}, 2, 0)
		s.Publish()
	}
	if v, err := s.At(3 * pin); err != nil || v.Revision() != 3*pin {
		t.Errorf("a snapshot after compaction: %v, %v", v, err)
	}
}

package logstore

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/hashicorp/raft"
)

const testLimit = 1 << 20

// seeded returns randomness whose seed the test logs.
func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// TestCacheIsInvisible makes Raft's calls to a log, at random, with and without the cache.
func TestCacheIsInvisible(t *testing.T) {
	rnd := seeded(t)
	plain, below := raft.NewInmemStore(), raft.NewInmemStore()
	c := NewCache(below, testLimit)
	check := func(index uint64) {
		t.Helper()
		var want, got raft.Log
		wantErr, gotErr := plain.GetLog(index, &want), c.GetLog(index, &got)
		if !errors.Is(gotErr, wantErr) || want.Index != got.Index || want.Term != got.Term ||
			!bytes.Equal(want.Data, got.Data) {
			t.Fatalf("entry %d is %v (%v), want %v (%v)", index, got, gotErr, want, wantErr)
		}
	}
	both := func(do func(raft.LogStore) error) {
		t.Helper()
		if err := errors.Join(do(plain), do(c)); err != nil {
			t.Fatal(err)
		}
	}
	first, last, term := uint64(1), uint64(0), uint64(1)
	for range 2000 {
		switch rnd.IntN(10) {
		case 0: // another leader had other entries
			if last > first {
				from := first + uint64(rnd.Int64N(int64(last-first)))
				term++
				both(func(s raft.LogStore) error { return s.DeleteRange(from, last) })
				last = from - 1
			}
		case 1: // a snapshot
			if last > first {
				to := first + uint64(rnd.Int64N(int64(last-first)))
				both(func(s raft.LogStore) error { return s.DeleteRange(first, to) })
				first = to + 1
			}
		default:
			var entries []*raft.Log
			for range rnd.IntN(5) + 1 {
				last++
				data := bytes.Repeat([]byte{byte(last), byte(term)}, rnd.IntN(20_000))
				entries = append(entries, &raft.Log{Index: last, Term: term, Data: data})
			}
			both(func(s raft.LogStore) error { return s.StoreLogs(entries) })
		}
		for range 5 {
			check(uint64(rnd.Int64N(int64(last + 2))))
		}
		check(last)
		if c.bytes > testLimit || len(c.entries) > cacheEntries {
			t.Fatalf("the cache holds %d entries with %d bytes", len(c.entries), c.bytes)
		}
	}
}

// brokenLog fails to store.
type brokenLog struct{ *raft.InmemStore }

var errBroken = errors.New("broken")

func (brokenLog) StoreLogs([]*raft.Log) error { return errBroken }

func TestCacheHoldsNothingThatIsNotStored(t *testing.T) {
	c := NewCache(brokenLog{raft.NewInmemStore()}, testLimit)
	if err := c.StoreLog(&raft.Log{Index: 1}); !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	if err := c.GetLog(1, new(raft.Log)); !errors.Is(err, raft.ErrLogNotFound) {
		t.Fatalf("an entry that was not stored is read: %v", err)
	}
}

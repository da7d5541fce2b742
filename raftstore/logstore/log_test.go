package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// kinds are all ways to keep a log.
var kinds = []Kind{Boltdb, WAL}

// forEachKind runs a test on a directory of each kind.
func forEachKind(t *testing.T, test func(t *testing.T, opts Options)) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			test(t, Options{Dir: t.TempDir(), Kind: kind, Timeout: time.Hour})
		})
	}
}

func open(t *testing.T, opts Options) *Log {
	t.Helper()
	l, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func shut(t *testing.T, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// entry returns the entry that stands at an index in these tests.
func entry(index uint64) *raft.Log {
	return &raft.Log{
		Index: index, Term: 1 + index/100, Type: raft.LogType(index % 3),
		AppendedAt: time.Unix(int64(index), int64(index)),
		Data:       bytes.Repeat([]byte{byte(index), byte(index >> 8)}, int(index%500)),
		Extensions: fmt.Appendf(nil, "x%d", index)[:index%3],
	}
}

// store appends the entries from first to last, several at a time.
func store(t *testing.T, l *Log, first, last uint64) {
	t.Helper()
	for index := first; index <= last; {
		var batch []*raft.Log
		for range 1 + index%7 {
			if index <= last {
				batch = append(batch, entry(index))
				index++
			}
		}
		if err := l.StoreLogs(batch); err != nil {
			t.Fatal(err)
		}
	}
}

// expect looks for the entries, and nothing else.
func expect(t *testing.T, l *Log, first, last uint64) {
	t.Helper()
	if err := differs(l, first, last); err != nil {
		t.Fatal(err)
	}
}

func differs(l *Log, first, last uint64) error {
	f, err := l.FirstIndex()
	n, err2 := l.LastIndex()
	if err != nil || err2 != nil || f != first || n != last {
		return fmt.Errorf("the log goes from %d to %d, want %d to %d: %v, %v", f, n, first, last, err, err2)
	}
	for i := first; i <= last && i > 0; i++ {
		var got raft.Log
		if err := l.GetLog(i, &got); err != nil {
			return err
		}
		want := entry(i)
		if got.Index != i || got.Term != want.Term || got.Type != want.Type || !bytes.Equal(got.Data, want.Data) ||
			!bytes.Equal(got.Extensions, want.Extensions) || !got.AppendedAt.Equal(want.AppendedAt) {
			return fmt.Errorf("entry %d is %+v, want %+v", i, got, *want)
		}
	}
	if err := l.GetLog(last+1, new(raft.Log)); !errors.Is(err, raft.ErrLogNotFound) {
		return fmt.Errorf("the entry after the last: %v", err)
	}
	return nil
}

func TestEntriesAndValues(t *testing.T) {
	forEachKind(t, func(t *testing.T, opts Options) {
		l := open(t, opts)
		expect(t, l, 0, 0)
		if v, err := l.GetUint64([]byte(keyCurrentTerm)); v != 0 || err != nil {
			t.Errorf("a term that was never set: %d, %v", v, err)
		}
		if v, err := l.Get([]byte(keyVote)); v != nil || err != nil {
			t.Errorf("a vote that was never given: %q, %v", v, err)
		}
		store(t, l, 1, 1000)
		for i := range uint64(10) {
			if err := errors.Join(l.SetUint64([]byte(keyCurrentTerm), i), l.SetUint64([]byte(keyVoteTerm), i),
				l.Set([]byte(keyVote), fmt.Append(nil, "v", i))); err != nil {
				t.Fatal(err)
			}
		}
		// As Raft deletes: the beginning goes after a snapshot, the end when another leader
		// overrules it.
		steps := []struct{ from, to, first, last uint64 }{
			{1, 300, 301, 1000}, {900, 1000, 301, 899}, {850, 2000, 301, 849}, {301, 301, 302, 849}, {302, 849, 0, 0},
		}
		for _, step := range steps {
			if err := l.Snapshotted(step.first); err != nil { // a server would have one
				t.Fatal(err)
			}
			opts.Covered = max(step.first, step.to)
			if step.last > 0 {
				opts.Covered = step.first
			}
			if err := l.DeleteRange(step.from, step.to); err != nil {
				t.Fatal(err)
			}
			expect(t, l, step.first, step.last)
			shut(t, l)
			l = open(t, opts)
			expect(t, l, step.first, step.last)
			if step.last > 0 {
				store(t, l, step.last+1, step.last+10)
				shut(t, l)
				l = open(t, opts)
				expect(t, l, step.first, step.last+10)
				if err := l.DeleteRange(step.last+1, step.last+10); err != nil {
					t.Fatal(err)
				}
			}
		}
		store(t, l, 5000, 5100) // after a snapshot from another server
		shut(t, l)
		opts.Covered = 4999
		l = open(t, opts)
		expect(t, l, 5000, 5100)
		term, err := l.GetUint64([]byte(keyCurrentTerm))
		voted, err2 := l.GetUint64([]byte(keyVoteTerm))
		vote, err3 := l.Get([]byte(keyVote))
		if err := errors.Join(err, err2, err3); err != nil || term != 9 || voted != 9 || string(vote) != "v9" {
			t.Errorf("term %d, vote in term %d for %q: %v", term, voted, vote, err)
		}
		shut(t, l)
	})
}

// TestNoGaps: a log that ends before the snapshot is not connected to the entries after it.
func TestNoGaps(t *testing.T) {
	forEachKind(t, func(t *testing.T, opts Options) {
		l := open(t, opts)
		store(t, l, 1, 50)
		if err := l.StoreLog(entry(52)); err == nil {
			t.Error("a gap is allowed")
		}
		if err := l.Snapshotted(100); err != nil {
			t.Fatal(err)
		}
		store(t, l, 101, 120) // Raft could not delete the old entries
		expect(t, l, 101, 120)
		if err := l.Snapshotted(200); err != nil {
			t.Fatal(err)
		}
		shut(t, l) // a crash before Raft deletes the old entries
		opts.Covered = 200
		l = open(t, opts)
		expect(t, l, 0, 0)
		if r := l.Report(); r.Dropped != 20 {
			t.Errorf("it says %+v", r)
		}
		store(t, l, 201, 210)
		shut(t, l)
		l = open(t, opts)
		expect(t, l, 201, 210)
		shut(t, l)
	})
}

// TestConversion opens a log of each kind with the other.
func TestConversion(t *testing.T) {
	forEachKind(t, func(t *testing.T, opts Options) {
		l := open(t, opts)
		store(t, l, 1, 3000)
		if err := errors.Join(l.SetUint64([]byte(keyCurrentTerm), 31), l.Set([]byte(keyVote), []byte("a")),
			l.DeleteRange(1, 10)); err != nil {
			t.Fatal(err)
		}
		opts.Covered = 10
		was := opts.Kind
		for range 3 {
			shut(t, l)
			if opts.Kind = Boltdb; was == Boltdb {
				opts.Kind = WAL
			}
			l = open(t, opts)
			expect(t, l, 11, 3000)
			if r := l.Report(); r.ConvertedFrom != was || r.Kind != opts.Kind {
				t.Errorf("it says %+v", r)
			}
			if term, err := l.GetUint64([]byte(keyCurrentTerm)); err != nil || term != 31 {
				t.Errorf("the term is %d: %v", term, err)
			}
			was = opts.Kind
		}
		shut(t, l)
	})
}

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

// TestLogFailure: a log that cannot be written is reported until it can be written again.
func TestLogFailure(t *testing.T) {
	disk := new(fullDisk)
	log := open(t, Options{Timeout: time.Hour, Wrap: func(s Store) Store {
		disk.Store = s
		return disk
	}})
	index := uint64(1)
	for i, c := range []struct {
		full bool
		want error
	}{{false, nil}, {true, errFull}, {true, errFull}, {false, nil}} {
		disk.full = c.full
		if err := log.StoreLog(&raft.Log{Index: index}); !errors.Is(err, c.want) {
			t.Errorf("write %d: %v", i, err)
		}
		if !c.full {
			index++
		}
		if err := log.Err(); !errors.Is(err, c.want) {
			t.Errorf("after write %d: %v", i, err)
		}
	}
}

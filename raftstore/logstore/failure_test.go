package logstore

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/internal/atomicfile"
)

// sickDisk fails every write with an error.
type sickDisk struct {
	Store
	err *error
}

func (d sickDisk) StoreLogs(entries []*raft.Log) error {
	if *d.err != nil {
		return &os.PathError{Op: "write", Path: "log", Err: *d.err}
	}
	return d.Store.StoreLogs(entries)
}

func (d sickDisk) Set(key, value []byte) error {
	if *d.err != nil {
		return &os.PathError{Op: "write", Path: "log", Err: *d.err}
	}
	return d.Store.Set(key, value)
}

// TestBroken: after a failure that is no lack of room nothing is written any more, whatever the
// disk says later.
func TestBroken(t *testing.T) {
	forEachKind(t, func(t *testing.T, opts Options) {
		var disk error
		var fatal []error
		opts.Wrap = func(s Store) Store { return sickDisk{s, &disk} }
		opts.Fatal = func(err error) { fatal = append(fatal, err) }
		l := open(t, opts)
		store(t, l, 1, 5)
		disk = syscall.EIO
		for range 3 {
			if err := l.StoreLog(entry(6)); !errors.Is(err, ErrBroken) || !errors.Is(err, syscall.EIO) {
				t.Errorf("a write on a broken disk: %v", err)
			}
			disk = nil
		}
		if err := l.Set([]byte(keyVote), []byte("a")); !errors.Is(err, ErrBroken) {
			t.Errorf("a vote: %v", err)
		}
		if len(fatal) != 1 || !errors.Is(fatal[0], ErrBroken) {
			t.Errorf("it was told %v", fatal)
		}
		shut(t, l)
		l = open(t, opts)
		expect(t, l, 1, 5)
		shut(t, l)
	})
}

// TestTermOnFullDisk: a term for which there is no room ends nothing, and nothing is promised in
// it.
func TestTermOnFullDisk(t *testing.T) {
	forEachKind(t, func(t *testing.T, opts Options) {
		var disk error
		asked := 0
		opts.Wrap = func(s Store) Store { return sickDisk{s, &disk} }
		opts.MakeRoom = func() bool { asked++; return false }
		l := open(t, opts)
		store(t, l, 1, 5)
		if err := l.SetUint64([]byte(keyCurrentTerm), 3); err != nil {
			t.Fatal(err)
		}
		disk = syscall.ENOSPC
		if err := l.SetUint64([]byte(keyCurrentTerm), 4); err != nil {
			t.Fatal(err)
		}
		if term, err := l.GetUint64([]byte(keyCurrentTerm)); err != nil || term != 4 {
			t.Errorf("term %d, %v", term, err)
		}
		for what, err := range map[string]error{
			"an entry": l.StoreLog(entry(6)), "a vote": l.SetUint64([]byte(keyVoteTerm), 4),
			"its candidate": l.Set([]byte(keyVote), []byte("a")),
		} {
			if !errors.Is(err, ErrFull) || !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("%s on a full disk: %v", what, err)
			}
		}
		if asked == 0 {
			t.Error("nobody was asked for room")
		}
		shut(t, l)
		disk = nil
		l = open(t, opts) // a crash has forgotten the term
		if term, err := l.GetUint64([]byte(keyCurrentTerm)); err != nil || term != 3 {
			t.Errorf("after a restart: term %d, %v", term, err)
		}
		disk = syscall.ENOSPC
		if err := l.SetUint64([]byte(keyCurrentTerm), 5); err != nil {
			t.Fatal(err)
		}
		disk = nil
		if err := l.Set([]byte(keyVote), []byte("a")); err != nil { // which brings the term to disk first
			t.Fatal(err)
		}
		shut(t, l)
		l = open(t, opts)
		if term, err := l.GetUint64([]byte(keyCurrentTerm)); err != nil || term != 5 {
			t.Errorf("after the vote: term %d, %v", term, err)
		}
		expect(t, l, 1, 5)
		shut(t, l)
	})
}

// TestReopenAfterFailure: entries that came to disk with a failed write are not there when the next
// one comes.
func TestReopenAfterFailure(t *testing.T) {
	forEachKind(t, func(t *testing.T, opts Options) {
		var late error
		opts.Wrap = func(s Store) Store { return lateFailure{s, &late} }
		l := open(t, opts)
		store(t, l, 1, 50)
		late = errors.New("the answer was lost")
		if err := l.StoreLogs([]*raft.Log{entry(51), entry(52)}); err == nil {
			t.Fatal("no failure")
		}
		late = nil
		if opts.Kind == WAL { // a Boltdb's transaction is undone by itself
			store(t, l, 51, 60)
			expect(t, l, 1, 60)
		}
		shut(t, l)
		if opts.Kind == WAL {
			l = open(t, opts)
			expect(t, l, 1, 60)
			shut(t, l)
		}
	})
}

// lateFailure stores entries, and then says that it could not.
type lateFailure struct {
	Store
	err *error
}

func (f lateFailure) StoreLogs(entries []*raft.Log) error {
	return errors.Join(f.Store.StoreLogs(entries), *f.err)
}

// TestSwitchThatMayNotLast: a new log has taken the place of the old one, and the disk is too full
// to say that this is so after a crash, too. Whichever of the two is the log then lacks the writes
// to the other.
func TestSwitchThatMayNotLast(t *testing.T) {
	for _, sick := range []error{syscall.ENOSPC, syscall.EIO} {
		opts := Options{Kind: WAL, Dir: t.TempDir(), Timeout: time.Hour}
		var fatal []error
		opts.Fatal = func(err error) { fatal = append(fatal, err) }
		opts.MakeRoom = func() bool { return true }
		l := open(t, opts)
		store(t, l, 1, 10)
		l.home.put = func(path string, data []byte, mode os.FileMode) error {
			return errors.Join(atomicfile.Write(path, data, mode),
				&os.PathError{Op: "sync", Path: l.home.dir, Err: sick})
		}
		if err := l.DeleteRange(8, 10); !errors.Is(err, ErrBroken) || errors.Is(err, ErrFull) { // it rebuilds a WAL
			t.Errorf("%v: %v", sick, err)
		}
		if len(fatal) != 1 || !errors.Is(fatal[0], ErrBroken) {
			t.Errorf("%v: it was told %v", sick, fatal)
		}
		l.home.put = atomicfile.Write
		if err := l.StoreLog(entry(8)); !errors.Is(err, ErrBroken) {
			t.Errorf("%v: a write after that: %v", sick, err)
		}
		shut(t, l)
		l = open(t, opts)
		expect(t, l, 1, 7)
		shut(t, l)
	}
}

// TestTrim: the file of a Boltdb gives back the room that it does not need.
func TestTrim(t *testing.T) {
	opts := Options{Dir: t.TempDir(), Timeout: time.Hour}
	l := open(t, opts)
	for first := uint64(1); first < 9000; first += 1000 {
		var batch []*raft.Log
		for i := range uint64(1000) {
			batch = append(batch, entry(first+i))
		}
		if err := l.StoreLogs(batch); err != nil {
			t.Fatal(err)
		}
	}
	path := l.home.path(l.home.rec)
	if err := errors.Join(l.Snapshotted(8900), l.DeleteRange(1, 8900)); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Trim(); err != nil {
		t.Fatal(err)
	}
	expect(t, l, 8901, 9000)
	after, err := os.Stat(l.home.path(l.home.rec))
	if err != nil || after.Size() > before.Size()/4 {
		t.Errorf("from %d to %d bytes: %v", before.Size(), after.Size(), err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error("the old file is still there:", err)
	}
	store(t, l, 9001, 9010)
	shut(t, l)
	opts.Covered = 8900
	l = open(t, opts)
	expect(t, l, 8901, 9010)
	shut(t, l)
}

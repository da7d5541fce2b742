package logstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"

	"github.com/barque/barque/raftstore/faultpoint"
)

// ErrFull is returned for a write without space on the disk. The log recovers when there is space
// again.
var ErrFull = errors.New("the disk of this server is full")

// ErrBroken is returned for every write after one has failed for any reason other than a lack of
// space. The contents of the disk are unknown then: a sync that is repeated after a failure can
// succeed without having written anything.
var ErrBroken = errors.New("the disk of this server has failed")

// Options of a Log.
type Options struct {
	// Dir is the directory of all files. It is made if it is absent. Empty: in memory, for tests.
	// The caller ensures that no other process has it open.
	Dir string
	// Kind of the log. One of another kind that is found is converted.
	Kind Kind
	// Covered is the newest entry that the snapshots hold: the log must begin there or before.
	Covered uint64
	// Floor returns up to which entry the beginning of the log may be deleted. It may be nil: any.
	Floor func() uint64
	// Timeout is how long a write may take before the Watchdog reports it.
	Timeout time.Duration
	// Extension returns by how much Timeout is extended now, as on a machine that is short of CPU.
	// It may be nil: never.
	Extension func() time.Duration
	// Observe receives the duration of each write. It may be nil.
	Observe func(Operation, time.Duration)
	// MakeRoom is called when the disk is full, and returns whether there is more space now. It is
	// called again if that was too little. It may be nil.
	MakeRoom func() bool
	// Fatal is called, once, with an error that wraps ErrBroken. It may be nil.
	Fatal  func(error)
	Logger *slog.Logger

	// Wrap replaces the store of the kind, below everything that this package adds, each time it is
	// opened. Fault is called before and after syncs. Both are for tests and may be nil.
	Wrap  func(Store) Store
	Fault faultpoint.Func

	segment int   // bytes of a segment of a WAL, for tests of this package; 0: segmentSize
	shrink  int64 // for tests, in place of shrinkBytes; 0: shrinkBytes

	volumeFree func() int64 // for tests: free bytes of the volume; nil: as it is
}

// Operation is the kind of a write to the log.
type Operation string

const (
	Append   Operation = "append"   // of entries
	Truncate Operation = "truncate" // of entries
	Vote     Operation = "vote"     // a term, or a vote
)

// Keys of Raft's values beside the log.
const (
	keyCurrentTerm = "CurrentTerm"
	keyVoteTerm    = "LastVoteTerm"
	keyVote        = "LastVoteCand"
)

// Log is a log for Raft: a store of some kind, verified and watched over. It implements
// raft.LogStore, raft.StableStore and raft.MonotonicLogStore. Reads continue during a write.
//
//	writing ──no room──▶ stale ──opened again, or room──▶ writing
//	   └──any other error of the disk──▶ broken, for good
type Log struct {
	opts   Options
	home   *home // nil in memory
	mark   *mark
	disk   *Watchdog
	times  times
	report Report

	access sync.RWMutex // held for writing while store is replaced
	store  Store
	raw    Store // the store below store, on disk

	cuts    atomic.Uint64 // how often entries were deleted
	writing turn          // one write at a time; it guards:
	last    uint64        // newest entry that was acknowledged
	stale   bool          // the store is a WAL that must be opened again before it is used
	broken  error

	mu      sync.Mutex
	failure error  // of the last write; nil when it succeeded
	term    uint64 // Raft's term while it is not on disk yet; 0 otherwise
}

// Open opens the log of a directory, or makes it.
func Open(opts Options) (*Log, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Kind == "" {
		opts.Kind = Boltdb
	}
	if opts.Wrap == nil {
		opts.Wrap = func(s Store) Store { return s }
	}
	began := time.Now()
	l := &Log{opts: opts, disk: NewWatchdog(opts.Timeout, opts.Extension), mark: new(mark), writing: make(turn, 1),
		report: Report{Kind: opts.Kind}}
	err := l.open()
	if err == nil {
		err = l.verify(opts.Covered)
	}
	if err == nil {
		err = l.settle()
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	l.report.Took = time.Since(began)
	return l, nil
}

func (l *Log) open() (err error) {
	if l.opts.Dir == "" {
		l.store = l.opts.Wrap(NewInMemory())
		return nil
	}
	if l.home, err = openHome(l.opts.Dir); err != nil {
		return err
	}
	var found, lost bool
	if l.mark, found, lost, err = openMark(filepath.Join(l.opts.Dir, markFile)); err != nil {
		return err
	}
	isNew := l.home.rec.Generation == 0
	l.report.Unguarded = lost || !found && !isNew
	if isNew {
		return l.create()
	}
	if l.home.rec.Kind != l.opts.Kind {
		l.report.ConvertedFrom = l.home.rec.Kind
	}
	store, err := l.openStore(l.home.rec)
	if err != nil {
		return err
	}
	l.raw, l.store = store, l.opts.Wrap(store)
	return nil
}

// create makes the first log of a directory, in which nothing may have been promised.
func (l *Log) create() error {
	if said := l.mark.get(); said != (promises{}) {
		return corrupt(filepath.Join(l.home.dir, recordFile), "",
			"it is missing, and %s tells of a log up to entry %d in term %d",
			markFile, said.Last, said.Term)
	}
	next := l.home.next(l.opts.Kind)
	store, err := l.openStore(next)
	if err != nil {
		return err
	}
	l.raw, l.store = store, l.opts.Wrap(store)
	if err := l.mark.set(true, func(*promises) {}); err != nil {
		return err
	}
	if err := l.home.adopt(next); err != nil {
		return err
	}
	return l.furnish(store, next.Kind, 0)
}

// settle brings a valid log into its working shape.
func (l *Log) settle() error {
	r := &l.report
	l.last = r.Last
	if r.Last > 0 && r.Last < l.opts.Covered {
		// The next entry follows the snapshot, and a log has no gaps. A crash came after Raft had
		// got the snapshot of another server or a backup, and before it could remove the old
		// entries.
		r.Dropped = r.Last - r.First + 1
		if err := l.truncate(r.First, r.Last); err != nil {
			return err
		}
		r.First, r.Last = 0, 0
	}
	if l.home != nil && r.ConvertedFrom != "" {
		if err := l.rebuild(l.last); err != nil {
			return fmt.Errorf("convert the log from %s to %s: %w", r.ConvertedFrom, r.Kind, err)
		}
	}
	l.promise(func(p *promises) {
		if p.Last != l.last {
			p.Last, p.LastTerm = l.last, 0
		}
	})
	return nil
}

// Disk returns the watchdog, which knows whether a write hangs.
func (l *Log) Disk() *Watchdog { return l.disk }

// Report returns the findings at the opening of the log.
func (l *Log) Report() Report { return l.report }

// use calls a function with the store.
func (l *Log) use(call func(Store) error) error {
	l.access.RLock()
	defer l.access.RUnlock()
	return call(l.store)
}

// read reads an entry and verifies it.
func (l *Log) read(index uint64, entry *raft.Log) error {
	err := l.use(func(s Store) error { return s.GetLog(index, entry) })
	if err == nil {
		err = reveal(index, entry)
	}
	if err == nil {
		return nil
	}
	return l.corrupt(index, "%w", err)
}

// FirstIndex implements raft.LogStore.
func (l *Log) FirstIndex() (index uint64, err error) {
	err = l.use(func(s Store) error { index, err = s.FirstIndex(); return err })
	return index, err
}

// LastIndex implements raft.LogStore.
func (l *Log) LastIndex() (index uint64, err error) {
	err = l.use(func(s Store) error { index, err = s.LastIndex(); return err })
	return index, err
}

// GetLog implements raft.LogStore. A damaged entry is a CorruptError.
func (l *Log) GetLog(index uint64, entry *raft.Log) error {
	err := l.use(func(s Store) error { return s.GetLog(index, entry) })
	if errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	if err == nil {
		err = reveal(index, entry)
	}
	if err != nil {
		return l.corrupt(index, "%w", err)
	}
	return nil
}

// Get implements raft.StableStore.
func (l *Log) Get(key []byte) (value []byte, err error) {
	err = l.use(func(s Store) error { value, err = s.Get(key); return err })
	if err != nil && err.Error() == "not found" { // the interface's error for an unset value
		return nil, nil
	}
	if err == nil {
		value, err = revealValue(key, value)
	}
	if err != nil {
		return nil, l.corruptValue(string(key), "%w", err)
	}
	return value, nil
}

// GetUint64 implements raft.StableStore.
func (l *Log) GetUint64(key []byte) (uint64, error) {
	if string(key) == keyCurrentTerm {
		if term := l.pending(); term != 0 {
			return term, nil
		}
	}
	value, err := l.Get(key)
	switch {
	case err != nil || len(value) == 0:
		return 0, err
	case len(value) != 8:
		return 0, l.corruptValue(string(key), "it has %d bytes", len(value))
	}
	return binary.BigEndian.Uint64(value), nil
}

// IsMonotonic implements raft.MonotonicLogStore: a log has no gaps. After a snapshot from outside,
// Raft deletes the earlier entries instead of leaving a gap.
func (l *Log) IsMonotonic() bool { return true }

// Snapshotted notes that a snapshot that ends with an entry is on disk.
func (l *Log) Snapshotted(index uint64) error {
	return l.mark.set(true, func(p *promises) { p.Snapshot = max(p.Snapshot, index) })
}

// Latency returns the median and the 99th percentile of the last appends, and how many these are:
// at most 256.
func (l *Log) Latency() (p50, p99 time.Duration, n int) { return l.times.quantiles() }

// Err returns that a write hangs, or why the last one failed; nil otherwise.
func (l *Log) Err() error {
	if err := l.disk.Check(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
}

// pending returns the term that is not on disk yet, or 0.
func (l *Log) pending() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term
}

// Close closes the log.
func (l *Log) Close() error {
	l.writing.lock()
	defer l.writing.unlock()
	l.access.Lock()
	defer l.access.Unlock()
	var err error
	if l.store != nil {
		err = l.store.Close()
	}
	return errors.Join(err, l.mark.close())
}

// isFull reports whether an error is a lack of room.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// isSealed reports that a WAL needs a new segment and has none: a crash came when the old one was
// full.
func isSealed(err error) bool { return errors.Is(err, wal.ErrSealed) }

func voteHash(value []byte) uint64 { return xxhash.Sum64(value) }

// turn is a mutex whose waiters count as blocked in virtual time: a write can hang for long.
type turn chan struct{}

func (t turn) lock()   { t <- struct{}{} }
func (t turn) unlock() { <-t }

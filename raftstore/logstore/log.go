package logstore

import (
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/faultpoint"
)

// Options of a Log.
type Options struct {
	// Dir is where everything is kept. It is made when it is absent. Empty: in memory, for tests.
	Dir  string
	Kind Kind
	// Timeout is how long a write may be under way before the Watchdog tells of it.
	Timeout time.Duration
	// Observe is told how long each write took. It may be nil.
	Observe func(Operation, time.Duration)
	Logger  *slog.Logger

	// Wrap replaces the store of the kind below everything that this package adds, and Fault is called at
	// the edges of syncs. Both are for tests and may be nil.
	Wrap  func(Store) Store
	Fault faultpoint.Func
}

// Operation is what a write to the log does.
type Operation string

const (
	Append   Operation = "append"   // of entries
	Truncate Operation = "truncate" // of entries
	Vote     Operation = "vote"     // a term, or a vote
)

// Log is a log for Raft: a store of some kind, watched over. It implements raft.LogStore,
// raft.StableStore and raft.MonotonicLogStore.
type Log struct {
	store Store
	opts  Options
	disk  *Watchdog
	times times

	mu      sync.Mutex
	failure error // of the last write; nil when it succeeded
}

// Open opens the log of a directory, or makes it.
func Open(opts Options) (*Log, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	store, err := openKind(&opts)
	if err != nil {
		return nil, err
	}
	if opts.Wrap != nil {
		store = opts.Wrap(store)
	}
	return &Log{store: store, opts: opts, disk: NewWatchdog(opts.Timeout)}, nil
}

// Disk returns what knows whether a write hangs.
func (l *Log) Disk() *Watchdog { return l.disk }

// write makes a write for which Raft waits: watched, timed, between its two points.
func (l *Log) write(op Operation, before, after string, do func() error) error {
	l.opts.Fault.At(before)
	start := time.Now()
	err := l.disk.guard(do)
	took := time.Since(start)
	if err == nil {
		l.opts.Fault.At(after)
	}
	l.mu.Lock()
	l.failure = err
	l.mu.Unlock()
	if op == Append {
		l.times.add(took)
	}
	if l.opts.Observe != nil {
		l.opts.Observe(op, took)
	}
	return err
}

// FirstIndex implements raft.LogStore.
func (l *Log) FirstIndex() (uint64, error) { return l.store.FirstIndex() }

// LastIndex implements raft.LogStore.
func (l *Log) LastIndex() (uint64, error) { return l.store.LastIndex() }

// GetLog implements raft.LogStore.
func (l *Log) GetLog(index uint64, entry *raft.Log) error { return l.store.GetLog(index, entry) }

// StoreLog implements raft.LogStore.
func (l *Log) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore.
func (l *Log) StoreLogs(entries []*raft.Log) error {
	return l.write(Append, faultpoint.LogBeforeSync, faultpoint.LogAfterSync, func() error {
		return l.store.StoreLogs(entries)
	})
}

// DeleteRange implements raft.LogStore. It is not watched: it may be long, and whoever waits behind it is.
func (l *Log) DeleteRange(first, last uint64) error {
	l.opts.Fault.At(faultpoint.LogBeforeTruncate)
	start := time.Now()
	err := l.store.DeleteRange(first, last)
	if l.opts.Observe != nil {
		l.opts.Observe(Truncate, time.Since(start))
	}
	if err == nil {
		l.opts.Fault.At(faultpoint.LogAfterTruncate)
	}
	return err
}

// IsMonotonic implements raft.MonotonicLogStore: a log has no gaps. After a snapshot from outside, Raft
// deletes what came before and does not leave it behind a gap.
func (l *Log) IsMonotonic() bool { return true }

// Set implements raft.StableStore.
func (l *Log) Set(key, value []byte) error {
	return l.write(Vote, faultpoint.VoteBeforeSync, faultpoint.VoteAfterSync, func() error { return l.store.Set(key, value) })
}

// SetUint64 implements raft.StableStore.
func (l *Log) SetUint64(key []byte, value uint64) error {
	before, after := faultpoint.VoteBeforeSync, faultpoint.VoteAfterSync
	if string(key) == keyCurrentTerm {
		before, after = faultpoint.TermBeforeSync, faultpoint.TermAfterSync
	}
	return l.write(Vote, before, after, func() error { return l.store.SetUint64(key, value) })
}

// keyCurrentTerm is where Raft keeps its term.
const keyCurrentTerm = "CurrentTerm"

// Get implements raft.StableStore.
func (l *Log) Get(key []byte) ([]byte, error) { return l.store.Get(key) }

// GetUint64 implements raft.StableStore.
func (l *Log) GetUint64(key []byte) (uint64, error) { return l.store.GetUint64(key) }

// Latency returns the median and the 99th percentile of the last appends; 0 when there were none.
func (l *Log) Latency() (p50, p99 time.Duration) { return l.times.quantiles(time.Time{}) }

// Err returns that a write hangs, or else why the last one failed; nil when it did not.
func (l *Log) Err() error {
	if err := l.disk.Check(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
}

// Close closes the store.
func (l *Log) Close() error { return l.store.Close() }

package node

import (
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

const (
	logFile = "raft.db"
	// keptSnapshots is how many snapshots stay on disk.
	keptSnapshots = 2
	// openTimeout bounds how long it waits for another process that has the log open.
	openTimeout = 5 * time.Second
)

// logStore is what keeps the log and Raft's votes.
type logStore interface {
	raft.LogStore
	raft.StableStore
	Close() error
}

// storage is everything that a server keeps.
type storage struct {
	log       *timedLog
	snapshots raft.SnapshotStore
}

func openStorage(cfg *Config) (*storage, error) {
	if cfg.InMemory {
		return &storage{log: newTimedLog(memoryLog{raft.NewInmemStore()}, cfg.Timeouts.DiskWrite), snapshots: raft.NewInmemSnapshotStore()}, nil
	}
	log, err := openLog(cfg)
	if err != nil {
		return nil, err
	}
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(cfg.Dir, keptSnapshots, newRaftLogger(cfg.Logger))
	if err != nil {
		log.Close()
		return nil, fmt.Errorf("open the snapshots in %s: %w", cfg.Dir, err)
	}
	return &storage{log: newTimedLog(log, cfg.Timeouts.DiskWrite), snapshots: snapshots}, nil
}

func openLog(cfg *Config) (logStore, error) {
	if cfg.raftLog != nil {
		return cfg.raftLog()
	}
	path := filepath.Join(cfg.Dir, logFile)
	log, err := raftboltdb.New(raftboltdb.Options{
		Path: path,
		// The list of free pages is found again at start and not written with each entry.
		BoltOptions: &bbolt.Options{
			Timeout: openTimeout, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType,
		},
		MsgpackUseNewTimeFormat: true,
	})
	if err != nil {
		return nil, fmt.Errorf("open the log %s: %w (is another process using it?)", path, err)
	}
	return log, nil
}

type memoryLog struct{ *raft.InmemStore }

func (memoryLog) Close() error { return nil }

// timedLog measures how long the disk takes to store entries, and remembers when it does not. Its
// watchdog looks after all writes for which Raft waits.
type timedLog struct {
	logStore
	observe func(time.Duration) // set before use; may be nil
	disk    *watchdog

	mu      sync.Mutex
	samples [256]time.Duration
	n       int
	failure error // of the last write; nil when it succeeded
}

func newTimedLog(log logStore, limit time.Duration) *timedLog {
	return &timedLog{logStore: log, disk: newWatchdog(limit)}
}

// StoreLog implements raft.LogStore.
func (l *timedLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore.
func (l *timedLog) StoreLogs(entries []*raft.Log) error {
	start := time.Now()
	err := l.disk.guard(func() error { return l.logStore.StoreLogs(entries) })
	took := time.Since(start)
	l.mu.Lock()
	l.samples[l.n%len(l.samples)] = took
	l.n++
	l.failure = err
	l.mu.Unlock()
	if l.observe != nil {
		l.observe(took)
	}
	return err
}

// Set implements raft.StableStore.
func (l *timedLog) Set(key, value []byte) error {
	return l.disk.guard(func() error { return l.logStore.Set(key, value) })
}

// SetUint64 implements raft.StableStore.
func (l *timedLog) SetUint64(key []byte, value uint64) error {
	return l.disk.guard(func() error { return l.logStore.SetUint64(key, value) })
}

// latency returns the median and the 99th percentile of the last writes.
func (l *timedLog) latency() (p50, p99 time.Duration) {
	l.mu.Lock()
	sorted := slices.Clone(l.samples[:min(l.n, len(l.samples))])
	l.mu.Unlock()
	if len(sorted) == 0 {
		return 0, 0
	}
	slices.Sort(sorted)
	return sorted[len(sorted)/2], sorted[len(sorted)*99/100]
}

// failed returns that a write hangs or else why the last one failed, nil when it did not.
func (l *timedLog) failed() error {
	if err := l.disk.check(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
}

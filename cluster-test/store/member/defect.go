package member

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore"
)

// Defect makes a member wrong on purpose, so that a test can show that its checks find that.
type Defect string

// AcknowledgesEarly is a log that says that entries are on disk a while before they are.
const AcknowledgesEarly Defect = "acknowledges early"

// wrap returns raftstore.Config.WrapLog for the defect.
func (d Defect) wrap() func(raftstore.LogStore) raftstore.LogStore {
	if d != AcknowledgesEarly {
		return nil
	}
	return func(log raftstore.LogStore) raftstore.LogStore { return &earlyLog{LogStore: log} }
}

// earlyLog holds the newest entries in memory only.
type earlyLog struct {
	raftstore.LogStore
	mu   sync.Mutex
	held []*raft.Log
	came []time.Time
}

// earlyFor is how old an entry is before it is written, at least.
const earlyFor = 300 * time.Millisecond

func (l *earlyLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

func (l *earlyLog) StoreLogs(entries []*raft.Log) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := 0
	for old < len(l.came) && time.Since(l.came[old]) > earlyFor {
		old++
	}
	if err := l.write(old); err != nil {
		return err
	}
	for _, e := range entries {
		l.held, l.came = append(l.held, e), append(l.came, time.Now())
	}
	return nil
}

// write writes the oldest n of what is held.
func (l *earlyLog) write(n int) error {
	if n == 0 {
		return nil
	}
	err := l.LogStore.StoreLogs(l.held[:n])
	l.held, l.came = l.held[n:], l.came[n:]
	return err
}

func (l *earlyLog) FirstIndex() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, err := l.LogStore.FirstIndex()
	if first == 0 && err == nil && len(l.held) > 0 {
		first = l.held[0].Index
	}
	return first, err
}

func (l *earlyLog) LastIndex() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.held); n > 0 {
		return l.held[n-1].Index, nil
	}
	return l.LogStore.LastIndex()
}

func (l *earlyLog) GetLog(index uint64, entry *raft.Log) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.held); n > 0 && index >= l.held[0].Index && index <= l.held[n-1].Index {
		*entry = *l.held[index-l.held[0].Index]
		return nil
	}
	return l.LogStore.GetLog(index, entry)
}

func (l *earlyLog) DeleteRange(from, to uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.write(len(l.held)); err != nil {
		return err
	}
	return l.LogStore.DeleteRange(from, to)
}

package raftfix

import (
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/logstore"
)

// Log is the log as Raft sees it when it has installed a snapshot from the leader. Raft then drops
// the whole of a log that may have no gaps (raft.MonotonicLogStore), and yet takes the newest entry
// of it for one that is there. That is well only while the snapshot goes further than the log. What
// the log has behind the snapshot's last entry is kept: if it agrees with the leader's, as the Raft
// paper has it (figure 13, step 6), and if not, for Raft to overwrite it. What leads up to a
// snapshot that it contradicts goes, so that it is never sent.
type Log struct {
	*logstore.Cache
	opts LogOptions
	raft atomic.Pointer[raft.Raft] // nil until Raft runs
}

// LogOptions of a Log. All are needed.
type LogOptions struct {
	Snapshots raft.SnapshotStore
	// Sever lets the log be deleted up to an entry, though older snapshots end before that one.
	Sever func(index uint64)
	// Fatal is told when the log cannot be made what Raft will take it for.
	Fatal func(error)
}

// NewLog returns the log as Raft is to have it.
func NewLog(log *logstore.Cache, opts LogOptions) *Log { return &Log{Cache: log, opts: opts} }

// Attach is called when Raft runs on the log, and before any message comes.
func (l *Log) Attach(r *raft.Raft) { l.raft.Store(r) }

// IsMonotonic implements raft.MonotonicLogStore: whether the log is to be dropped. Raft asks when
// it has installed a snapshot, and at no other time.
func (l *Log) IsMonotonic() bool {
	if !l.Cache.IsMonotonic() {
		return false
	}
	drop, err := l.endsBeforeSnapshot()
	if err != nil {
		l.opts.Fatal(fmt.Errorf("a snapshot from the leader is installed, and the log cannot be made to go on from it: this server must start again: %w", err))
	}
	return drop
}

func (l *Log) endsBeforeSnapshot() (bool, error) {
	all, err := l.opts.Snapshots.List()
	if err != nil || len(all) == 0 {
		return true, err
	}
	end := all[0]
	last, err := l.LastIndex()
	switch {
	case err != nil:
		return false, err
	case last <= end.Index:
		return true, nil
	case l.agrees(end.Index, end.Term):
		return false, nil
	}
	first, err := l.FirstIndex()
	if err != nil || first > end.Index {
		return false, err
	}
	l.opts.Sever(end.Index)
	return false, l.DeleteRange(first, end.Index)
}

// agrees returns whether the log has this very entry.
func (l *Log) agrees(index, term uint64) bool {
	var entry raft.Log
	return l.GetLog(index, &entry) == nil && entry.Term == term
}

// installed returns the newest snapshot that this server's state has all of. A newer one may be on
// disk: one that is being installed, or could not be.
func (l *Log) installed() (*raft.SnapshotMeta, bool) {
	all, err := l.opts.Snapshots.List()
	if err != nil {
		return nil, false
	}
	applied := l.raft.Load().AppliedIndex()
	for _, s := range all {
		if s.Index <= applied {
			return s, true
		}
	}
	return nil, false
}

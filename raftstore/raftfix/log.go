package raftfix

import (
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/logstore"
)

// Log is Raft's view of the log when it has installed a snapshot from the leader. Raft then drops
// the whole of a log without gaps (raft.MonotonicLogStore), and still counts its newest entry as
// present. That is correct only while the snapshot reaches further than the log. Entries after the
// snapshot's last entry are kept. If they agree with the leader's, the Raft paper demands it
// (figure 13, step 6). If not, Raft overwrites them. Entries that lead to a snapshot that they
// contradict are removed, so that they are never sent.
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
	// Fatal is called if the log cannot be brought into the state that Raft will assume.
	Fatal func(error)
}

// NewLog returns the log in Raft's view.
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
		l.opts.Fatal(
			fmt.Errorf(
				"a snapshot from the leader is installed, and the log cannot be made to go on from it: this server must start again: %w", err))
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

// installed returns the newest snapshot that this server's state includes. A newer one on disk may
// be in installation, or may have failed.
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

package node

import (
	"errors"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/logstore"
)

// keptLog is the log as Raft sees it. It differs from the one on disk around the entry with which the newest snapshot
// ends: from there on, Raft and the leader must be able to go on, whatever the log was before the snapshot came.
//
//   - When Raft has installed a snapshot from the leader, it drops the whole of a log that may have no gaps
//     (raft.MonotonicLogStore), and yet takes the newest entry of it for one that is there. That is well only while
//     the snapshot goes further than the log. What the log has behind the snapshot's last entry is kept: if it agrees
//     with the leader's, as the Raft paper has it (figure 13, step 6), and if not, for Raft to overwrite it.
//   - The snapshot's last entry itself can be read, so that a leader finds where this log agrees with its own. Raft
//     only looks at the entry's term: whoever needs what is in it needs the one before, too, and gets a snapshot.
type keptLog struct {
	*logstore.Cache
	snapshots raft.SnapshotStore
}

// IsMonotonic implements raft.MonotonicLogStore: whether the log is to be dropped. Raft asks when it has installed a
// snapshot, and at no other time.
func (l *keptLog) IsMonotonic() bool {
	if !l.Cache.IsMonotonic() {
		return false
	}
	end, ok := l.newestSnapshot()
	if !ok {
		return true
	}
	last, err := l.LastIndex()
	if err != nil || last <= end.Index {
		return true
	}
	if l.agrees(end.Index, end.Term) {
		return false
	}
	// What leads up to the snapshot must never be sent to anybody.
	first, err := l.FirstIndex()
	return err != nil || first <= end.Index && l.DeleteRange(first, end.Index) != nil
}

// agrees returns whether the log on disk has this very entry.
func (l *keptLog) agrees(index, term uint64) bool {
	var entry raft.Log
	return l.Cache.GetLog(index, &entry) == nil && entry.Term == term
}

// GetLog implements raft.LogStore.
func (l *keptLog) GetLog(index uint64, entry *raft.Log) error {
	err := l.Cache.GetLog(index, entry)
	if !errors.Is(err, raft.ErrLogNotFound) || index <= 1 { // nobody looks for what comes before the first one
		return err
	}
	if end, ok := l.newestSnapshot(); ok && end.Index == index {
		*entry = raft.Log{Index: index, Term: end.Term, Type: raft.LogNoop}
		return nil
	}
	return err
}

// newestSnapshot returns what the newest snapshot is of, if there is one.
func (l *keptLog) newestSnapshot() (*raft.SnapshotMeta, bool) {
	all, err := l.snapshots.List()
	if err != nil || len(all) == 0 {
		return nil, false
	}
	return all[0], true
}

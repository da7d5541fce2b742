package node

import (
	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/logstore"
)

// keptLog is the log as Raft sees it. When Raft has installed a snapshot from the leader, it drops the whole of a log
// that may have no gaps (raft.MonotonicLogStore), and yet takes the newest entry of it for one that is there. That
// is well while the snapshot goes further than the log. But a leader that has cut its own log may send a snapshot
// to a follower that has more: Raft then panics when the leader says that the dropped entries are committed.
//
// A log that agrees with the snapshot, and goes on where it ends, is kept, as the Raft paper has it (figure 13, step 6):
// cut where any log is cut after a snapshot, it has no gap either.
type keptLog struct {
	*logstore.Cache
	snapshots raft.SnapshotStore
}

// IsMonotonic implements raft.MonotonicLogStore. Raft asks when it has installed a snapshot, and at no other time.
func (l *keptLog) IsMonotonic() bool { return l.Cache.IsMonotonic() && !l.goesOn() }

// goesOn returns whether the log has the entry with which the newest snapshot ends, and others behind it.
func (l *keptLog) goesOn() bool {
	all, err := l.snapshots.List()
	if err != nil || len(all) == 0 {
		return false
	}
	last, err := l.LastIndex()
	if err != nil || last <= all[0].Index {
		return false
	}
	var entry raft.Log
	return l.GetLog(all[0].Index, &entry) == nil && entry.Term == all[0].Term
}

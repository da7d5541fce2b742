package raftfix

import (
	"sync"

	"github.com/hashicorp/raft"
)

// Transfers remembers the transfers of leadership that Raft may not have finished.
//
// For a transfer, Raft gives the replication to the other server a task, through a channel with
// room for one, and waits until it is done. It gives up after a while, as when the other server
// does not answer, and the task stays. A second transfer to the same server then waits for room,
// and ignores its own timeout: if leadership ends before the replication takes from its channel
// again, it waits forever. From then on Raft believes that a transfer is under way, and whenever
// this server is elected it leads and refuses every write (raft.leadershipTransfer in 1.8.0;
// TestTransferTwice of package node). So there is no second transfer before the first one's task is
// gone.
type Transfers struct {
	mu   sync.Mutex
	term uint64                   // of the transfers; the replications end with it
	left map[raft.ServerID]uint64 // servers to which a transfer was given up, and the newest entry of the log then
}

// Pending returns the record of a transfer to a server that was abandoned in this term.
func (t *Transfers) Pending(term uint64, id raft.ServerID) (newest uint64, is bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.term != term {
		return 0, false
	}
	newest, is = t.left[id]
	return newest, is
}

// GaveUp notes that a transfer to a server was given up, and the newest entry of the log then.
func (t *Transfers) GaveUp(term uint64, id raft.ServerID, newest uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.term != term {
		t.term, t.left = term, make(map[raft.ServerID]uint64)
	}
	t.left[id] = newest
}

// Done notes that the task of that transfer is gone.
func (t *Transfers) Done(id raft.ServerID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.left, id)
}

// Any reports whether there is an abandoned transfer in the term.
func (t *Transfers) Any(term uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.term == term && len(t.left) > 0
}

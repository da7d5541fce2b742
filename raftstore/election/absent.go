package election

import (
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
)

// Is there no leader? An election may bring none: votes were split, or a candidate that could not
// win deposed the winner at once. Then no leader can be gone or silent, and Raft waits for its
// time-outs before it tries again:
//
//	led ──Raft forgets the leader──▶ no leader ──for Timeouts.Silence, for a quorum too──▶ absent
//	 ▲                                 │   ▲ │
//	 └────────────a server leads───────┘   └─┘ an election, or a vote being written: from anew
//
// A candidate waits for its time-out until another server campaigns in a later term. When all
// campaign in the same term no follower is left, and they do wait.
//
// A server that is persisting a vote agrees with no server, nor for shareTicks after that, as the
// vote may make a leader. So slow disks get their time: an election that still needs them is not
// followed by another one.

// absence is for how long this server has known of no leader, no election and no vote.
type absence struct {
	term  uint64 // of the last election
	ticks atomic.Int64
	extra atomic.Int64 // ticks by which the time is extended
}

// tick takes the sample of a tick, and reports whether it is time to ask. Detect alone calls it.
func (a *absence) tick(leader raft.ServerID, term uint64, writing bool) bool {
	ticks := a.ticks.Load() + 1
	if leader != "" || term != a.term || writing {
		ticks = 0
	}
	a.term = term
	a.ticks.Store(ticks)
	return ticks > 0 && ticks%(group.SilenceTicks+a.extra.Load()) == 0
}

// extend extends the time by so many ticks until it is called again.
func (a *absence) extend(ticks int) { a.extra.Store(int64(ticks)) }

// lasts reports whether this server has known of none of them for a while.
func (a *absence) lasts() bool { return a.ticks.Load() >= shareTicks+a.extra.Load() }

package election

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// The failure detector asks three questions about the leader. Raft's heartbeats are the fallback
// behind it: they leave room for a leader that is only short of CPU.
//
//	led ──gone or silent, as a quorum finds──▶ the server with the longest log campaigns ──▶ led
//	                                             ▲                │
//	               absent, as a quorum finds ────┘◀──no leader────┘
//
// Time counts in ticks of this server's own clock, Timeouts.Tick each. A late tick counts once, so
// a server that is stopped or waits for CPU counts no silence meanwhile. Servers that wait for the
// same CPU lose count together. Machines that are short of CPU get more time: see extend.go.

// suspicion is why a leader may be lost.
type suspicion string

const (
	gone   suspicion = "gone"   // gone.go: its connections break and its address refuses new ones
	silent suspicion = "silent" // silent.go: nothing is heard of it
	// absent: absent.go: no election has brought one. Servers of earlier versions know the value on
	// the wire.
	absent suspicion = "vacant"
)

// shareTicks is how many ticks of silence, or without a leader, make a server agree with one that
// asks. They are fewer than make it ask: servers do not tick at the same time.
const shareTicks = 3

// Detect asks in each tick whether the leader is silent or absent, and makes this server campaign.
// Follow asks whether it is gone. Detect ends with ctx.
func (e *Elector) Detect(ctx context.Context) {
	every := e.opts.Timeouts.Tick()
	if every == 0 {
		return
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var signs signs
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		leader, life := e.listen(&signs)
		e.extend(leader)
		if e.silence.tick(leader, life) {
			e.campaignFor(ctx, question{Leader: leader, Why: silent})
		}
		if e.absence.tick(leader, e.raft.CurrentTerm(), e.server.Writing()) {
			e.campaignFor(ctx, question{Why: absent})
		}
	}
}

// finds reports whether this server itself answers a question with yes.
func (e *Elector) finds(q question) bool {
	switch q.Why {
	case gone:
		return e.refusing.Load() == q.Leader
	case silent:
		return e.silence.misses(q.Leader)
	case absent:
		return e.absence.lasts()
	default:
		return false
	}
}

// unmoved is nil while this server is a follower in a term, of that leader or, if it is empty, of
// none.
func (e *Elector) unmoved(leader raft.ServerID, term uint64) error {
	now, state := e.raft.CurrentTerm(), e.raft.State()
	if _, id := e.leader(); state != raft.Follower || now != term || id != leader {
		return fmt.Errorf("this server is a %v in term %d whose leader is %q; "+
			"it was a follower in term %d whose leader was %q", state, now, id, term, leader)
	}
	return nil
}

package election

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
)

// An election may bring no leader: votes were split, or a candidate that could not win deposed the
// winner at once. Then no leader can be lost, and Raft waits for its time-outs before it tries
// again. The no-leader timer campaigns sooner:
//
//	led ──Raft forgets the leader──▶ no leader ──for Timeouts.Silence, as a quorum finds too──▶ a server campaigns
//	 ▲                                 │   ▲                                                          │
//	 └────────────a server leads───────┘   └────────────the term goes up: the timer restarts──────────┘
//
// The follower with the longest log campaigns first. A candidate waits for its time-out until
// another server campaigns in a later term. Then it votes, or is a follower whose turn may be next.
// (When all campaign in the same term no follower is left, and they do wait.) A follower that does
// not campaign in its turn is passed over. All servers count from the last election that they know
// of, so their turns come at about the same times.
//
// After a failed election, servers back off for the preceding leaderless time, if that is longer:
// where writing a vote takes longer than Timeouts.Silence, no server would ever be elected
// otherwise.

// mostBackOff bounds the back-off, in ticks. A server whose disk takes longer does not campaign.
const mostBackOff = 4 * group.SilenceTicks

// noLeaderTimer is for how long this server has known of no leader, and of no election.
type noLeaderTimer struct {
	mu     sync.Mutex
	term   uint64 // of the last election
	ticks  int    // since then
	before int    // ticks without a leader before it
}

// tick is called in each tick. It returns how many turns to campaign have come, the last one just
// now; 0 at any other moment.
func (t *noLeaderTimer) tick(led bool, term uint64) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case led:
		t.ticks, t.before = 0, 0
	case term != t.term:
		t.ticks, t.before = 0, t.before+t.ticks
	default:
		t.ticks++
	}
	t.term = term
	waited := t.ticks - min(max(t.before, group.SilenceTicks), mostBackOff)
	if t.ticks == 0 || waited < 0 || waited%group.SilenceTicks != 0 {
		return 0
	}
	return 1 + waited/group.SilenceTicks
}

// lasts tells whether this server has known of no leader for a while.
func (t *noLeaderTimer) lasts() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ticks >= shareTicks
}

// WatchNoLeader makes this server campaign when an election brought no leader, and it is its turn.
// It ends with ctx.
func (e *Elector) WatchNoLeader(ctx context.Context) {
	every := e.opts.Timeouts.Silence / group.SilenceTicks
	if every <= 0 {
		return
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	wrote := false // a tick ago: a vote, most likely; the news of its leader takes a moment
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		before := wrote
		wrote = e.server.Writing()
		_, leader := e.leader()
		if turn := e.noLeader.tick(leader != "", e.raft.CurrentTerm()); turn > 0 && !before && e.raft.State() == raft.Follower {
			e.campaignFor(ctx, "", doubt{why: absent, turns: turn - 1}) // the first turn is the best server's
		}
	}
}

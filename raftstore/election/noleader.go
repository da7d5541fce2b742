package election

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
)

// An election may bring no leader: votes were split, or the one who won was deposed at once by
// another one who stood and could not win. Then nobody leads and there is no leader to be lost,
// while Raft lets its time-outs pass before it tries again. That is found out sooner here:
//
//	led ──Raft forgets the leader──▶ vacant ──for Timeouts.Silence, as a quorum finds too──▶ somebody stands
//	 ▲                                │  ▲                                                       │
//	 └──────────somebody leads────────┘  └───────────────the term goes up, so it counts anew─────┘
//
// The first to stand is the follower whose log goes furthest. A candidate waits for its time-out,
// whatever it is told, until another one stands in a later term; then it votes, or is a follower
// whose turn may be next. (When all have stood in the same term nobody is left to do so, and they
// do wait.) Whoever does not come forward in his time is passed over. All count from the last
// election that they know of, so their turns come at about the same times.
//
// After each election they wait for as long as nobody had led before it, if that is longer:
// where votes take longer than Timeouts.Silence to be written, nobody would ever be elected
// otherwise.

// vacantMost is for how many ticks they wait at most. A server whose disk takes longer than that
// does not stand.
const vacantMost = 4 * group.SilenceTicks

// noLeaderTimer is for how long this server has known of no leader, and of no election.
type noLeaderTimer struct {
	mu     sync.Mutex
	term   uint64 // of the last election
	ticks  int    // since then
	before int    // ticks without a leader before it
}

// tick takes note of the state of things. It returns how many turns have come, the last one just
// now, for somebody to stand; 0 at any other moment.
func (v *noLeaderTimer) tick(led bool, term uint64) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case led:
		v.ticks, v.before = 0, 0
	case term != v.term:
		v.ticks, v.before = 0, v.before+v.ticks
	default:
		v.ticks++
	}
	v.term = term
	waited := v.ticks - min(max(v.before, group.SilenceTicks), vacantMost)
	if v.ticks == 0 || waited < 0 || waited%group.SilenceTicks != 0 {
		return 0
	}
	return 1 + waited/group.SilenceTicks
}

// lasts tells whether this server, too, has known of no leader for a while.
func (v *noLeaderTimer) lasts() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ticks >= shareTicks
}

// WatchNoLeader makes this server campaign when nobody leads after an election, and it is
// its turn. It ends with ctx.
func (e *Elector) WatchNoLeader(ctx context.Context) {
	every := e.opts.Timeouts.Silence / group.SilenceTicks
	if every <= 0 {
		return
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	wrote := false // a tick ago: a vote, most likely, of which it takes a moment to hear whether it has made a leader
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
			e.campaignFor(ctx, "", doubt{why: vacant, turns: turn - 1}) // the first one is for whoever comes first
		}
	}
}

package node

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
)

// electionsTaken is how many election timeouts may pass without a leader before this server says
// that it has none. An election without a split vote takes less than one.
const electionsTaken = 2

// electionsLost is how many may pass until repeating a request is no use: of slow timeouts,
// kv.LeaderlessAfter may be few.
const electionsLost = 5

// Ailment returns why this server cannot serve, as far as it knows that without asking another one.
// All but ErrClosed are ErrUnavailable.
func (n *Node) Ailment() error {
	if n.ctx.Err() != nil {
		return kv.ErrClosed
	}
	if r := n.autopilot.Removal(); r != nil {
		return fmt.Errorf("%w: %w", kv.ErrUnavailable, &group.RemovedError{Dir: n.cfg.Dir, Removal: *r})
	}
	if fatal := n.fatal.Load(); fatal != nil {
		return fmt.Errorf("%w: this server cannot go on: %w", kv.ErrUnavailable, *fatal)
	}
	if err := n.whySuperseded(); err != nil {
		return err
	}
	if err := n.guard.Explain(); err != nil {
		return err
	}
	if err := n.storage.Log.Disk().Check(); err != nil {
		return fmt.Errorf("%w: %w", kv.ErrUnavailable, err)
	}
	if since := n.leaderless(); since >= electionsTaken*n.electionTimeout() {
		return n.withoutLeader(since)
	}
	return nil
}

// leaderless returns for how long no leader has been known; 0 while one is.
func (n *Node) leaderless() time.Duration {
	if _, id := n.raft.leader(); id != "" {
		return 0
	}
	since := n.election.LeaderlessSince()
	if since.IsZero() { // it was lost just now
		return 0
	}
	return time.Since(since)
}

// withoutLeader is the error of a server that has known no leader for so long: an ErrLeaderless
// once that is no matter of an election any more.
func (n *Node) withoutLeader(since time.Duration) error {
	reason := fmt.Sprintf("no leader has been known for %s, since %s: ", since.Round(time.Second), time.Now().Add(-since).UTC().Format(time.RFC3339))
	if _, ok := n.member(n.id.ServerID); ok {
		voters := n.voters()
		reason += fmt.Sprintf("%d of the %d servers with a vote must reach each other", voters/2+1, voters)
	} else {
		reason += "this server is no member of the cluster yet, or hears nothing of it: it waits to be let in"
	}
	if since < max(kv.LeaderlessAfter, electionsLost*n.electionTimeout()) {
		return fmt.Errorf("%w: %s", kv.ErrUnavailable, reason)
	}
	return &kv.LeaderlessError{For: since, Reason: reason}
}

// electionTimeout is what an election takes at most, when no vote is split.
func (n *Node) electionTimeout() time.Duration {
	return max(n.cfg.Timeouts.Election, n.cfg.Timeouts.Heartbeat)
}

// Explain adds to the error of a read what may be the reason.
func (n *Node) Explain(err error) error {
	if ill := n.Ailment(); ill != nil {
		return ill
	}
	var also []string
	if since := n.leaderless(); since > 0 {
		also = append(also, fmt.Sprintf("no leader is known for %s", since.Round(time.Millisecond)))
	}
	if n.machine.Restoring() {
		also = append(also, "it is reading a snapshot of the leader")
	}
	if applied, committed := n.fsm.Applied().Index, n.raft.CommitIndex(); applied < committed {
		also = append(also, fmt.Sprintf("it has applied entry %d of %d", applied, committed))
	}
	if failed := n.storage.Log.Err(); failed != nil {
		also = append(also, fmt.Sprintf("its last write to the log failed: %v", failed))
	}
	if n.storage.Reserve.Full.Load() {
		also = append(also, "its disk is full")
	}
	if !errors.Is(err, kv.ErrUnavailable) && !errors.Is(err, kv.ErrClosed) {
		err = fmt.Errorf("%w: %w", kv.ErrUnavailable, err)
	}
	if len(also) == 0 {
		return err
	}
	return fmt.Errorf("%w (%s)", err, strings.Join(also, "; "))
}

package node

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/status"
)

// Status returns how this server sees itself.
func (n *Node) Status() status.Status {
	view := n.state.Latest()
	_, leader := n.raft.leader()
	s := status.Status{
		ID: n.id.ServerID, Name: n.cfg.Name, ClusterID: n.id.ClusterID,
		Address: n.cfg.Stream.Addr(), Version: n.cfg.Version,
		Role: strings.ToLower(n.raft.State().String()), Term: n.raft.CurrentTerm(), LeaderID: string(leader),
		LastIndex: n.raft.LastIndex(), CommitIndex: n.raft.CommitIndex(), AppliedIndex: n.fsm.Applied().Index,
		Revision: view.Revision(), Compacted: n.state.Compacted(), StateHash: fmt.Sprintf("%016x", view.Hash()),
		Keys: view.Len(), StateBytes: view.Bytes(),
	}
	space, _, limit := n.space.Measure()
	s.StateLimit, s.Space = limit, space.String()
	if m, ok := n.member(s.ID); s.Role == "follower" && (!ok || !m.Voter) {
		s.Role = "nonvoter"
	}
	if n.raft.State() != raft.Leader {
		s.LastContact = -1
		if last := n.raft.LastContact(); !last.IsZero() {
			s.LastContact = time.Since(last)
		}
	}
	s.Quarantined = n.guard.Why()
	s.Compared, s.Undecided = n.guard.Compared()
	s.Health = n.autopilot.Health()
	s.DiskP50, s.DiskP99, s.DiskWrites = n.storage.Log.Latency()
	s.SchedulingDelay, s.Extension = n.lateness.Own(), n.lateness.Extension(s.ID)
	s.Start, s.DiskFull = n.storage.Start, n.storage.Reserve.Full.Load()
	s.Superseded, s.Predecessors = n.succession.Superseded(), group.Predecessors(view)
	s.Changes, s.Foreign = n.election.Changes(), n.peers.Foreign()
	if n.cfg.Warnings != nil {
		s.Warnings = n.cfg.Warnings()
	}
	if err := n.storage.Log.Err(); err != nil {
		s.DiskError = err.Error()
	}
	return s
}

// condition returns the known reasons that keep this server from serving.
func (n *Node) condition() *status.Condition {
	_, leader := n.raft.leader()
	_, member := n.member(n.id.ServerID)
	c := &status.Condition{
		Closed: n.ctx.Err() != nil, Superseded: n.succession.Err(), Quarantined: n.guard.Explain(),
		DiskHangs: n.storage.Log.Disk().Check(),
		HasLeader: leader != "", LeaderlessSince: n.election.LeaderlessSince(),
		ElectionTimeout: max(n.cfg.Timeouts.Election, n.cfg.Timeouts.Heartbeat), Member: member, Voters: n.voters(),
		Restoring: n.machine.Restoring(), Applied: n.fsm.Applied().Index, Committed: n.raft.CommitIndex(),
		LogFailed: n.storage.Log.Err(), DiskFull: n.storage.Reserve.Full.Load(),
	}
	if r := n.autopilot.Removal(); r != nil {
		c.Removed = &group.RemovedError{Dir: n.cfg.Dir, Removal: *r}
	}
	if fatal := n.fatal.Load(); fatal != nil {
		c.Fatal = *fatal
	}
	return c
}

// Ailment returns why this server cannot serve, without asking another one. All errors but
// ErrClosed are ErrUnavailable.
func (n *Node) Ailment() error { return n.condition().Ailment() }

// Explain adds the likely reason to the error of a read.
func (n *Node) Explain(err error) error { return n.condition().Explain(err) }

// PeerStatus asks all members for their status at once, with a timeout for each.
func (n *Node) PeerStatus(ctx context.Context) []status.PeerStatus { return n.board.All(ctx) }

// PeerDetails asks all members for their status with its Detail at once, with a timeout for each.
// It takes longer than PeerStatus if others cannot reach a member.
func (n *Node) PeerDetails(ctx context.Context) []status.PeerStatus { return n.board.Details(ctx) }

// stateLimit is the effective limit: the one in the newest entry. A server that has seen none since
// its start shows its own.
func (n *Node) stateLimit() int64 {
	if limit := n.fsm.StateBytes(); limit > 0 {
		return limit
	}
	return max(n.cfg.StateBytes, 0)
}

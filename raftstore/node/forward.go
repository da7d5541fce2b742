package node

import (
	"context"
	"fmt"
	"time"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/election"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/peer"
	"github.com/barque/barque/raftstore/rpc"
	"github.com/barque/barque/raftstore/status"
)

// leaderAt returns how to dial the leader, and whether it is this server.
func (n *Node) leaderAt() (addr string, local bool, err error) {
	if n.ctx.Err() != nil {
		return "", false, kv.ErrClosed
	}
	address, id := n.raft.leader()
	if id == "" {
		return "", false, n.noLeader()
	}
	local = string(id) == n.id.ServerID
	if local {
		if err := n.leader.MayLead(); err != nil {
			return "", false, err
		}
	}
	return string(address), local, nil
}

// noLeader is the error of a request while there is no leader. During an election each waiting
// request calls it repeatedly, so it only looks for reasons after a while.
func (n *Node) noLeader() error {
	if since := n.election.LeaderlessSince(); since.IsZero() || time.Since(since) < status.LeaderlessAfter {
		return group.ErrNoLeader
	}
	return n.condition().NoLeader()
}

// handle answers another server. It does not forward: a server that asks the wrong one asks again.
func (n *Node) handle(ctx context.Context, kind byte, payload []byte) (byte, []byte) {
	switch kind {
	case peer.CallPropose:
		return n.handlePropose(ctx, payload)
	case peer.CallRead:
		return n.reads.Handle(ctx)
	case peer.CallStatus:
		return n.board.Handle(ctx, payload)
	case peer.CallMembers:
		return n.autopilot.HandleMembers(ctx, payload)
	case peer.CallState:
		return n.guard.HandleState(ctx, payload)
	case peer.CallIsolate:
		return n.guard.HandleVerdict(payload)
	case peer.CallSendState:
		return n.guard.HandleSendState(ctx, payload)
	case peer.CallReach:
		return n.autopilot.HandleReach(ctx, payload)
	case peer.CallHello:
		return n.peers.HandleHello(payload)
	case peer.CallLost:
		return n.election.HandleLost(payload)
	}
	return peer.AnswerRefused, fmt.Appendf(nil, "this server does not know requests of kind %d", kind)
}

func (n *Node) handler() rpc.Handler {
	return rpc.Handler{
		Answer: n.handle, AtOnce: n.handleAtOnce, Urgent: peer.Urgent,
		TooLarge: func() (byte, []byte) { return peer.Refuse(rpc.ErrTooLarge) },
	}
}

// handleAtOnce answers the questions that need nothing but this server's word.
func (n *Node) handleAtOnce(kind byte, payload []byte) (byte, []byte, bool) {
	switch kind {
	case peer.CallRead:
		return n.reads.HandleAtOnce(payload)
	case peer.CallPing:
		return peer.AnswerOK, nil, true
	case peer.CallTerm:
		answer, term := n.reads.HandleTerm()
		return answer, term, true
	case peer.CallEarlier:
		answer, since := n.reads.HandleEarlier(payload)
		return answer, since, true
	}
	return 0, nil, false
}

func (n *Node) handlePropose(ctx context.Context, payload []byte) (byte, []byte) {
	if _, local, err := n.leaderAt(); err != nil || !local || n.guard.Err() != nil {
		return peer.Refuse(group.ErrNoLeader)
	}
	req, err := command.DecodeRequest(payload)
	if err != nil {
		return peer.AnswerRefused, []byte(err.Error())
	}
	if req.Kind == command.KindTxn && n.cfg.CheckTxn != nil {
		if err := n.cfg.CheckTxn(&req.Txn); err != nil {
			return peer.Refuse(err)
		}
	}
	if caller, known := peer.Caller(ctx); known && req.Kind == command.KindTxn && n.cfg.Forwards != nil {
		if err := n.cfg.Forwards(caller, &req.Txn); err != nil {
			return peer.Refuse(&peer.RefusedError{Reason: err.Error()})
		}
	}
	if err := n.storage.Reserve.Takes(&req); err != nil {
		return peer.Refuse(err)
	}
	outcome, err := n.proposer.propose(ctx, &req)
	if err != nil {
		return peer.Refuse(err)
	}
	return peer.AnswerOK, command.AppendOutcome(nil, &outcome)
}

// ReadRevision returns a revision that reflects everything acknowledged before the call.
func (n *Node) ReadRevision(ctx context.Context) (uint64, error) { return n.reads.Revision(ctx) }

// ConfirmTerm returns nil if this server led the term at a moment after the call, as a quorum
// proves.
func (n *Node) ConfirmTerm(ctx context.Context, term uint64) error {
	return n.reads.ConfirmTerm(ctx, term)
}

// SinceEarlierProof returns how long ago, at least, a leader of an earlier term can have proven
// that it led.
func (n *Node) SinceEarlierProof(ctx context.Context, term uint64) (time.Duration, error) {
	return n.reads.SinceEarlierProof(ctx, term)
}

// Silent returns the members that do not answer this server's heartbeats, and a channel that is
// closed when that changes. It returns none while this server does not lead.
func (n *Node) Silent() ([]election.SilentMember, <-chan struct{}) { return n.election.Silent() }

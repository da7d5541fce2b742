package node

import (
	"context"
	"encoding/binary"
	"errors"
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
		return "", false, n.condition().NoLeader()
	}
	local = string(id) == n.id.ServerID
	if local {
		if err := n.leader.MayLead(); err != nil {
			return "", false, err
		}
	}
	return string(address), local, nil
}

// errDeposed is why a call to a leader is given up: it may never answer, as when it was cut off,
// and another one can be asked.
var errDeposed = errors.New("another server leads now")

// Propose brings the request into the log, wherever the leader is.
func (n *Node) Propose(ctx context.Context, req *command.Request) (command.Outcome, error) {
	outcome, err := n.proposeAnywhere(ctx, req)
	n.stats.Requests.WithLabelValues(status.OutcomeName(outcome, err)).Inc()
	return outcome, err
}

func (n *Node) proposeAnywhere(ctx context.Context, req *command.Request) (command.Outcome, error) {
	if err := n.guard.Err(); err != nil {
		return command.Outcome{}, err
	}
	over := n.election.LeaderChanged()
	leader, local, err := n.leaderAt()
	if err != nil {
		return command.Outcome{}, err
	}
	if local {
		if err := n.storage.Reserve.Takes(req); err != nil {
			return command.Outcome{}, err
		}
		return n.proposer.propose(ctx, req)
	}
	began := time.Now()
	f, err := n.peers.At(leader).CallUntil(ctx, over, errDeposed, peer.CallPropose, command.AppendRequest(nil, req))
	n.stats.Forwarded("write", began, err)
	if err != nil {
		return command.Outcome{}, n.callError(err, kv.ErrUnknownOutcome)
	}
	if f.Kind == peer.AnswerOK {
		outcome, err := command.DecodeOutcome(f.Payload)
		if err != nil {
			err = fmt.Errorf("%w: answer of the leader: %w", kv.ErrUnknownOutcome, err)
		}
		return outcome, err
	}
	return command.Outcome{}, peer.AnswerError(f)
}

func (n *Node) forwardRead(ctx context.Context, leader string, over <-chan struct{}) (uint64, error) {
	vote := readVote{term: n.raft.CurrentTerm(), id: n.id.ServerID}
	began := time.Now()
	f, err := n.peers.At(leader).CallUntil(ctx, over, errDeposed, peer.CallRead, vote.encode())
	n.stats.Forwarded("read", began, err)
	if err != nil {
		return 0, n.callError(err, kv.ErrUnavailable)
	}
	if f.Kind == peer.AnswerOK && len(f.Payload) == 8 {
		return binary.LittleEndian.Uint64(f.Payload), nil
	}
	return 0, peer.AnswerError(f)
}

// callError says what a failed call means; sent is the meaning when the request may have arrived.
func (n *Node) callError(err, sent error) error {
	switch {
	case errors.Is(err, rpc.ErrTooLarge):
		return fmt.Errorf("%w: %w", kv.ErrTooLarge, err)
	case errors.Is(err, rpc.ErrNotSent):
		return fmt.Errorf("%w: cannot reach the leader: %w", kv.ErrUnavailable, err)
	case n.ctx.Err() != nil && sent != kv.ErrUnknownOutcome:
		return kv.ErrClosed
	}
	return fmt.Errorf("%w: lost the leader: %w", sent, err)
}

// handle answers another server. It does not forward: a server that asks the wrong one asks again.
func (n *Node) handle(ctx context.Context, kind byte, payload []byte) (byte, []byte) {
	switch kind {
	case peer.CallPropose:
		return n.handlePropose(ctx, payload)
	case peer.CallRead:
		return n.handleRead(ctx)
	case peer.CallStatus:
		return n.board.Handle(ctx, payload)
	case peer.CallMembers:
		return n.autopilot.HandleMembers(ctx, payload)
	case peer.CallState:
		return n.guard.HandleState(ctx, payload)
	case peer.CallIsolate:
		return n.guard.HandleVerdict(payload)
	case peer.CallReach:
		return n.autopilot.HandleReach(ctx, payload)
	case peer.CallHello:
		return n.peers.HandleHello(payload)
	case peer.CallLost:
		return n.election.HandleLost(ctx, payload)
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
		if revision, ok := n.confirmBy(decodeReadVote(payload)); ok {
			return peer.AnswerOK, binary.LittleEndian.AppendUint64(nil, revision), true
		}
	case peer.CallPing:
		return peer.AnswerOK, nil, true
	case peer.CallTerm:
		return peer.AnswerOK, binary.LittleEndian.AppendUint64(nil, n.raft.CurrentTerm()), true
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
	if err := n.storage.Reserve.Takes(&req); err != nil {
		return peer.Refuse(err)
	}
	outcome, err := n.proposer.propose(ctx, &req)
	if err != nil {
		return peer.Refuse(err)
	}
	return peer.AnswerOK, command.AppendOutcome(nil, &outcome)
}

func (n *Node) handleRead(ctx context.Context) (byte, []byte) {
	if _, local, err := n.leaderAt(); err != nil || !local || n.guard.Err() != nil {
		return peer.Refuse(group.ErrNoLeader)
	}
	revision, err := n.reads.revision(ctx, n.ctx)
	if err != nil {
		return peer.Refuse(fmt.Errorf("%w: %w", kv.ErrUnavailable, err))
	}
	return peer.AnswerOK, binary.LittleEndian.AppendUint64(nil, revision)
}

// Silent returns the members that do not answer this server's heartbeats, and a channel that is
// closed when that changes. There are none while this server does not lead: then it does not know.
func (n *Node) Silent() ([]election.SilentMember, <-chan struct{}) { return n.election.Silent() }

package raftfix

import (
	"context"
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

// Filter passes messages of other servers to Raft, which trusts each of them. But a network may
// delay a message and deliver it after later ones, and a leader may know less of this server than
// this server does. Raft (1.8.0) then has these faults:
//
//   - It installs any snapshot of the current term, also one of entries that it has already: state
//     and log go back, and it panics when entries that it has dropped are to be applied ("log not
//     found"). The filter answers such a snapshot as installed, without installing it, if its last
//     entry was applied or is in the log (Raft paper, figure 13, step 6).
//   - It accepts entries only if it has the preceding one, with its term. After a snapshot the log
//     may lack that entry, or have another one there. A snapshot has committed entries, so the
//     leader has them too. The filter only passes the entries after the snapshot to the comparison.
//   - It takes all entries up to the leader's commit index for the leader's, also those after the
//     ones in the message, which were not compared. The filter bounds the index as in the paper
//     (figure 2, AppendEntries, step 5).
//   - It promises its vote to a candidate when it has given it to another one: see prevotes.go.
//
// The tests of this file reproduce each fault against Raft.
//
// The filter's answers are those of Raft, except for a snapshot that is already there. As it knows
// the messages that Raft has been given, it also makes Raft campaign: see Campaign. Heartbeats
// bypass it: Raft's transport passes them on by itself.
type Filter struct {
	log   *Log
	votes raft.StableStore
	take  TakeState
	out   chan raft.RPC

	orders  chan order
	answers sync.WaitGroup // to messages that Raft does not see
}

// order is an order to campaign.
type order struct {
	ctx    context.Context // of its caller
	header raft.RPCHeader
	still  func() error // why it is to be so no more, or nil
	done   chan error
}

// TakeState receives a snapshot of the term 0, in which no server leads: one that is for this
// server and not for Raft, which would ignore it.
type TakeState func(m *raft.InstallSnapshotRequest, state io.Reader) error

// NewFilter returns the filter for the Raft that has the log, and keeps its votes there.
func NewFilter(log *Log, votes raft.StableStore, take TakeState) *Filter {
	return &Filter{log: log, votes: votes, take: take, out: make(chan raft.RPC), orders: make(chan order)}
}

// Consumer returns Raft's channel of messages, as raft.Transport has it.
func (f *Filter) Consumer() <-chan raft.RPC { return f.out }

// Run passes messages on, in their order, from when Raft runs until stopped is closed.
func (f *Filter) Run(in <-chan raft.RPC, stopped <-chan struct{}) {
	defer f.answers.Wait()
	for {
		select {
		case rpc := <-in:
			if f.pass(rpc, stopped) && !f.hand(rpc, stopped) {
				return
			}
		case o := <-f.orders:
			o.done <- f.campaign(o, in, stopped)
		case <-stopped:
			return
		}
	}
}

// Campaign makes Raft begin an election in which servers that have a leader vote as well, as after
// a transfer of leadership (Raft thesis, section 3.10). It first waits until Raft has handled all
// earlier messages, and then calls still, whose error says that the election is not wanted any
// more: it would depose a server that has asked for this server's vote meanwhile, or was elected.
// It returns that error, or that of ctx. After the end of ctx no election begins, except at that
// very moment. The header is that of this server.
func (f *Filter) Campaign(ctx context.Context, header raft.RPCHeader, still func() error) error {
	o := order{ctx: ctx, header: header, still: still, done: make(chan error, 1)}
	select {
	case f.orders <- o:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-o.done:
		return err
	case <-ctx.Done(): // Raft may hang on its disk, and Run with it
		return context.Cause(ctx)
	}
}

func (f *Filter) campaign(o order, in <-chan raft.RPC, stopped <-chan struct{}) error {
	for waiting := true; waiting; {
		if !f.awaitRaft(o.ctx.Done(), stopped) {
			break
		}
		select {
		case rpc := <-in:
			if f.pass(rpc, stopped) && !f.hand(rpc, stopped) {
				return raft.ErrRaftShutdown
			}
		default:
			waiting = false
		}
	}
	if o.ctx.Err() != nil {
		return context.Cause(o.ctx)
	}
	if err := o.still(); err != nil {
		return err
	}
	answer := make(chan raft.RPCResponse, 1)
	select {
	case f.out <- raft.RPC{Command: &raft.TimeoutNowRequest{RPCHeader: o.header}, RespChan: answer}:
	case <-o.ctx.Done():
		return context.Cause(o.ctx)
	case <-stopped:
		return raft.ErrRaftShutdown
	}
	select {
	case r := <-answer: // at once
		return r.Error
	case <-stopped:
		return raft.ErrRaftShutdown
	}
}

// hand gives Raft a message. It returns whether Raft has taken it.
func (f *Filter) hand(rpc raft.RPC, stopped <-chan struct{}) bool {
	select {
	case f.out <- rpc:
		return true
	case <-stopped:
		return false
	}
}

// pass changes a message as it must be, and returns whether it is for Raft.
func (f *Filter) pass(rpc raft.RPC, stopped <-chan struct{}) bool {
	switch m := rpc.Command.(type) {
	case *raft.AppendEntriesRequest:
		if IsHeartbeat(m) {
			return true
		}
		m.LeaderCommitIndex = min(m.LeaderCommitIndex, m.PrevLogEntry+uint64(len(m.Entries)))
		if m.PrevLogEntry <= f.log.raft.Load().AppliedIndex() && !f.log.agrees(m.PrevLogEntry, m.PrevLogTerm) {
			f.cut(m)
		}
	case *raft.InstallSnapshotRequest:
		if m.Term == 0 {
			f.answers.Go(func() {
				err := f.take(m, rpc.Reader)
				_, _ = io.Copy(io.Discard, rpc.Reader) // as below
				rpc.Respond(&raft.InstallSnapshotResponse{}, err)
			})
			return false
		}
		f.awaitRaft(nil, stopped)
		own := f.log.raft.Load()
		if m.Term < own.CurrentTerm() ||
			m.LastLogIndex > own.AppliedIndex() && !f.log.agrees(m.LastLogIndex, m.LastLogTerm) {
			return true
		}
		f.answers.Go(func() {
			// as Raft does before any answer; an error ends the connection by itself
			_, _ = io.Copy(io.Discard, rpc.Reader)
			rpc.Respond(&raft.InstallSnapshotResponse{Term: m.Term, Success: true}, nil)
		})
		return false
	case *raft.RequestPreVoteRequest:
		if !f.voted(m, stopped) {
			return true
		}
		rpc.Respond(&raft.RequestPreVoteResponse{Term: f.log.raft.Load().CurrentTerm()}, nil)
		return false
	}
	return true
}

// awaitRaft waits until Raft has handled its messages. Raft takes one after the other, so it is
// done when it has refused one more, which is in no version of the protocol. It returns false if
// either channel is closed before.
func (f *Filter) awaitRaft(over, stopped <-chan struct{}) bool {
	answer := make(chan raft.RPCResponse, 1)
	unknown := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax + 1}}
	select {
	case f.out <- raft.RPC{Command: unknown, RespChan: answer}:
	case <-over:
		return false
	case <-stopped:
		return false
	}
	select {
	case <-answer:
		return true
	case <-over:
		return false
	case <-stopped:
		return false
	}
}

// cut removes from a message the entries in this server's newest snapshot.
func (f *Filter) cut(m *raft.AppendEntriesRequest) {
	end, ok := f.log.installed()
	if !ok || m.PrevLogEntry > end.Index {
		return
	}
	for len(m.Entries) > 0 && m.Entries[0].Index <= end.Index {
		m.Entries = m.Entries[1:]
	}
	m.PrevLogEntry, m.PrevLogTerm = 0, 0 // nothing to compare
}

// IsHeartbeat distinguishes Raft's heartbeats from its other messages as Raft's transport does.
func IsHeartbeat(m *raft.AppendEntriesRequest) bool {
	return len(m.Entries) == 0 && m.PrevLogEntry == 0 && m.PrevLogTerm == 0 && m.LeaderCommitIndex == 0
}

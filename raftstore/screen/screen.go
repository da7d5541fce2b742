// Package screen keeps from Raft what it would do wrong.
//
// A Screen stands where messages of other servers reach Raft, which takes each of them at its word.
// A network may hold a message back, though, and deliver it after others that were sent later; and
// a leader may know less of this server than this server does. What Raft (1.8.0) would do wrong
// then:
//
//   - It installs any snapshot of the current term, also one of what it has already: state and log
//     go back, and it panics when what it has dropped is to be applied ("log not found"). Here a
//     snapshot is answered as installed, and is not, when its last entry was applied or is in the
//     log (Raft paper, figure 13, step 6).
//   - It believes that the leader has entries only when it has the one that precedes them, with its
//     term. After a snapshot the log may lack it, or have another one there. What a snapshot has is
//     committed, so the leader does have it: of such a message nothing is compared but what comes
//     behind the snapshot.
//   - It takes all entries up to the leader's commit index for the leader's, also those behind the
//     ones in the message, which nobody has compared. The index is bounded as in the paper (figure
//     2, AppendEntries, step 5).
//
// A Log stands between Raft and its log, for what Raft would do to that when it has installed a
// snapshot.
//
// It is not for what Raft promises to others: nothing is answered here that Raft would answer
// otherwise, but that a snapshot is there which is.
//
// As it knows what Raft has been given, it is also the one who makes Raft stand for election: see
// Stand. Heartbeats do not come here: Raft's transport hands them over by itself.
package screen

import (
	"context"
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

// Screen passes messages on to Raft.
type Screen struct {
	log *Log
	out chan raft.RPC

	orders  chan order
	answers sync.WaitGroup // to what Raft does not see
}

// order is one to stand for election.
type order struct {
	ctx    context.Context // of who waits for it
	header raft.RPCHeader
	still  func() error // why it is to be so no more, or nil
	done   chan error
}

// New returns a screen for the Raft that has the log.
func New(log *Log) *Screen {
	return &Screen{log: log, out: make(chan raft.RPC), orders: make(chan order)}
}

// Consumer returns where Raft finds its messages, as raft.Transport has it.
func (s *Screen) Consumer() <-chan raft.RPC { return s.out }

// Run passes messages on, in their order, from when Raft runs until stopped is closed.
func (s *Screen) Run(in <-chan raft.RPC, stopped <-chan struct{}) {
	defer s.answers.Wait()
	for {
		select {
		case rpc := <-in:
			if s.pass(rpc, stopped) && !s.hand(rpc, stopped) {
				return
			}
		case o := <-s.orders:
			o.done <- s.stand(o, in, stopped)
		case <-stopped:
			return
		}
	}
}

// Stand makes Raft begin an election, in which those vote who know of a leader, too, as after a
// transfer of leadership (Raft thesis, section 3.10). Raft has dealt with every message that came
// before, and still has said then that the election is wanted: whoever has asked for this server's
// vote meanwhile, or has been elected, would be deposed. Else its error is returned, or that of
// ctx, after whose end no election is begun any more, unless at that very moment. The header is
// that of this server.
func (s *Screen) Stand(ctx context.Context, header raft.RPCHeader, still func() error) error {
	o := order{ctx: ctx, header: header, still: still, done: make(chan error, 1)}
	select {
	case s.orders <- o:
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

func (s *Screen) stand(o order, in <-chan raft.RPC, stopped <-chan struct{}) error {
	for waiting := true; waiting; {
		if !s.awaitRaft(o.ctx.Done(), stopped) {
			break
		}
		select {
		case rpc := <-in:
			if s.pass(rpc, stopped) && !s.hand(rpc, stopped) {
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
	case s.out <- raft.RPC{Command: &raft.TimeoutNowRequest{RPCHeader: o.header}, RespChan: answer}:
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
func (s *Screen) hand(rpc raft.RPC, stopped <-chan struct{}) bool {
	select {
	case s.out <- rpc:
		return true
	case <-stopped:
		return false
	}
}

// pass changes a message as it must be, and returns whether it is for Raft.
func (s *Screen) pass(rpc raft.RPC, stopped <-chan struct{}) bool {
	switch m := rpc.Command.(type) {
	case *raft.AppendEntriesRequest:
		if IsHeartbeat(m) {
			return true
		}
		m.LeaderCommitIndex = min(m.LeaderCommitIndex, m.PrevLogEntry+uint64(len(m.Entries)))
		if m.PrevLogEntry <= s.log.raft.Load().AppliedIndex() && !s.log.agrees(m.PrevLogEntry, m.PrevLogTerm) {
			s.cut(m)
		}
	case *raft.InstallSnapshotRequest:
		s.awaitRaft(nil, stopped)
		own := s.log.raft.Load()
		if m.Term < own.CurrentTerm() || m.LastLogIndex > own.AppliedIndex() && !s.log.agrees(m.LastLogIndex, m.LastLogTerm) {
			return true
		}
		s.answers.Go(func() {
			_, _ = io.Copy(io.Discard, rpc.Reader) // as Raft does before any answer; an error ends the connection by itself
			rpc.Respond(&raft.InstallSnapshotResponse{Term: m.Term, Success: true}, nil)
		})
		return false
	}
	return true
}

// awaitRaft waits until Raft is done with the messages that it was given: it takes one after the
// other, so it is when it has refused one more, which is in no version of the protocol. It returns
// false when either channel is closed before.
func (s *Screen) awaitRaft(over, stopped <-chan struct{}) bool {
	answer := make(chan raft.RPCResponse, 1)
	unknown := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax + 1}}
	select {
	case s.out <- raft.RPC{Command: unknown, RespChan: answer}:
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

// cut takes out of a message what is in this server's newest snapshot.
func (s *Screen) cut(m *raft.AppendEntriesRequest) {
	end, ok := s.log.installed()
	if !ok || m.PrevLogEntry > end.Index {
		return
	}
	for len(m.Entries) > 0 && m.Entries[0].Index <= end.Index {
		m.Entries = m.Entries[1:]
	}
	m.PrevLogEntry, m.PrevLogTerm = 0, 0 // nothing to compare
}

// IsHeartbeat tells Raft's heartbeats from its other messages as Raft's transport does.
func IsHeartbeat(m *raft.AppendEntriesRequest) bool {
	return len(m.Entries) == 0 && m.PrevLogEntry == 0 && m.PrevLogTerm == 0 && m.LeaderCommitIndex == 0
}

// Package screen keeps from Raft what it would do wrong.
//
// A Screen stands where messages of other servers reach Raft, which takes each of them at its word. A network may hold
// a message back, though, and deliver it after others that were sent later; and a leader may know less of this server
// than this server does. What Raft (1.8.0) would do wrong then:
//
//   - It installs any snapshot of the current term, also one of what it has already: state and log go back, and it
//     panics when what it has dropped is to be applied ("log not found"). Here a snapshot is answered as installed, and
//     is not, when its last entry was applied or is in the log (Raft paper, figure 13, step 6).
//   - It believes that the leader has entries only when it has the one that precedes them, with its term. After a snapshot
//     the log may lack it, or have another one there. What a snapshot has is committed, so the leader does have it: of
//     such a message nothing is compared but what comes behind the snapshot.
//   - It takes all entries up to the leader's commit index for the leader's, also those behind the ones in the
//     message, which nobody has compared. The index is bounded as in the paper (figure 2, AppendEntries, step 5).
//
// A Log stands between Raft and its log, for what Raft would do to that when it has installed a snapshot.
//
// It is not for what Raft promises to others: nothing is answered here that Raft would answer otherwise, but that a snapshot
// is there which is, and that a server that may not vote does not.
package screen

import (
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

// Screen passes messages on to Raft.
type Screen struct {
	log *Log
	out chan raft.RPC
	// RefuseVotes returns why this server gives no vote at the moment, or nil. It is set before Run, or not at all.
	RefuseVotes func() error

	answers sync.WaitGroup // to what Raft does not see
}

// New returns a screen for the Raft that has the log.
func New(log *Log) *Screen { return &Screen{log: log, out: make(chan raft.RPC)} }

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
		case <-stopped:
			return
		}
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
	case *raft.RequestVoteRequest, *raft.RequestPreVoteRequest:
		if s.RefuseVotes == nil {
			return true
		}
		err := s.RefuseVotes()
		if err != nil {
			rpc.Respond(nil, err)
		}
		return err == nil
	case *raft.AppendEntriesRequest:
		if IsHeartbeat(m) {
			return true
		}
		m.LeaderCommitIndex = min(m.LeaderCommitIndex, m.PrevLogEntry+uint64(len(m.Entries)))
		if m.PrevLogEntry <= s.log.raft.Load().AppliedIndex() && !s.log.agrees(m.PrevLogEntry, m.PrevLogTerm) {
			s.cut(m)
		}
	case *raft.InstallSnapshotRequest:
		s.awaitRaft(stopped)
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

// awaitRaft waits until Raft is done with the messages that it was given: it takes one after the other, so it is when
// it has refused one more, which is in no version of the protocol.
func (s *Screen) awaitRaft(stopped <-chan struct{}) {
	answer := make(chan raft.RPCResponse, 1)
	unknown := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax + 1}}
	if s.hand(raft.RPC{Command: unknown, RespChan: answer}, stopped) {
		select {
		case <-answer:
		case <-stopped:
		}
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

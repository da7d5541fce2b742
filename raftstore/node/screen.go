package node

import (
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

// screen stands where messages of other servers reach Raft, which takes each of them at its word. A network may hold
// a message back, though, and deliver it after others that were sent later; and a leader may know less of this server
// than this server does. What Raft (1.8.0) would do wrong then:
//
//   - It installs any snapshot of the current term, also one of what it has already: state and log go back, and it
//     panics when what it has dropped is to be applied ("log not found"). Here a snapshot is answered as installed, and
//     is not, when its last entry was applied or is in the log (Raft paper, figure 13, step 6).
//   - It believes that the leader has entries from before this server's snapshot only when it can look at the one
//     that precedes them. They are committed, so the leader does have them: such a message is cut where the snapshot
//     ends.
//   - It takes all entries up to the leader's commit index for the leader's, also those behind the ones in the
//     message, which nobody has compared. The index is bounded as in the paper (figure 2, AppendEntries, step 5).
type screen struct {
	log  *keptLog
	raft *raft.Raft // set before run
	out  chan raft.RPC

	answers sync.WaitGroup // to what Raft does not see
}

func newScreen(log *keptLog) *screen { return &screen{log: log, out: make(chan raft.RPC)} }

// screened is Raft's transport behind the screen.
type screened struct {
	*muzzle
	screen *screen
}

// Consumer implements raft.Transport.
func (s *screened) Consumer() <-chan raft.RPC { return s.screen.out }

// run passes messages on until stopped is closed, in their order.
func (s *screen) run(in <-chan raft.RPC, stopped <-chan struct{}) {
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
func (s *screen) hand(rpc raft.RPC, stopped <-chan struct{}) bool {
	select {
	case s.out <- rpc:
		return true
	case <-stopped:
		return false
	}
}

// pass changes a message as it must be, and returns whether it is for Raft.
func (s *screen) pass(rpc raft.RPC, stopped <-chan struct{}) bool {
	switch m := rpc.Command.(type) {
	case *raft.AppendEntriesRequest:
		if isHeartbeat(m) {
			return true
		}
		if m.PrevLogEntry < s.raft.AppliedIndex() {
			s.cut(m)
		}
		m.LeaderCommitIndex = min(m.LeaderCommitIndex, m.PrevLogEntry+uint64(len(m.Entries)))
	case *raft.InstallSnapshotRequest:
		s.awaitRaft(stopped)
		if m.Term < s.raft.CurrentTerm() || m.LastLogIndex > s.raft.AppliedIndex() && !s.log.agrees(m.LastLogIndex, m.LastLogTerm) {
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
// it has refused one more, of a term that was long ago.
func (s *screen) awaitRaft(stopped <-chan struct{}) {
	if s.raft.CurrentTerm() == 0 { // nothing was long ago, and there is nothing to be done with
		return
	}
	answer := make(chan raft.RPCResponse, 1)
	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}
	if s.hand(raft.RPC{Command: &raft.AppendEntriesRequest{RPCHeader: header}, RespChan: answer}, stopped) {
		select {
		case <-answer:
		case <-stopped:
		}
	}
}

// cut takes out of a message what lies before this server's newest snapshot, if the log does not go back so far.
func (s *screen) cut(m *raft.AppendEntriesRequest) {
	first, err := s.log.FirstIndex()
	if err != nil || first > 0 && first <= m.PrevLogEntry {
		return
	}
	end, ok := s.log.newestSnapshot()
	if !ok || m.PrevLogEntry >= end.Index {
		return
	}
	for len(m.Entries) > 0 && m.Entries[0].Index <= end.Index {
		m.Entries = m.Entries[1:]
	}
	m.PrevLogEntry, m.PrevLogTerm = end.Index, end.Term
}

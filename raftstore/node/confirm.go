package node

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/peer"
)

// confirm returns a revision that reflects everything committed before the call, on the leader.
//
// The commit index is read first. Then a quorum says that it is in no later term, so nobody else
// had been elected, and could have committed anything, before the call. The answer is a revision
// and not an index because it is the revision that other servers can wait for.
//
// Raft's VerifyLeader does not do: it also counts the answer to a heartbeat that was sent before it
// was called. A leader that was frozen finds such answers waiting when it wakes up, and would
// believe that it still leads.
func (n *Node) confirm(ctx context.Context) (uint64, error) {
	term := n.leader.Term()
	if term == 0 {
		return 0, group.ErrNoLeader
	}
	committed := n.raft.CommitIndex()
	if err := n.census.take(ctx, term); err != nil {
		return 0, err
	}
	if n.raft.CurrentTerm() != term {
		return 0, group.ErrNoLeader
	}
	if err := n.fsm.Waiter().Wait(ctx, committed); err != nil {
		return 0, fmt.Errorf("%w: %w", kv.ErrUnavailable, err)
	}
	return n.fsm.State().Revision(), nil
}

// readVote is what a server that asks the leader for a revision to read at says of itself: who it
// is, and in which term it was when it asked, which is after the read began.
type readVote struct {
	term uint64
	id   string
}

func (v readVote) encode() []byte {
	return append(binary.LittleEndian.AppendUint64(nil, v.term), v.id...)
}

// decodeReadVote returns the zero vote, which is nobody's, for what is none.
func decodeReadVote(payload []byte) readVote {
	if len(payload) < 8 {
		return readVote{}
	}
	return readVote{term: binary.LittleEndian.Uint64(payload), id: string(payload[8:])}
}

// confirmBy is confirm when the one who asks makes a quorum with this server, as in a group of
// three: his word counts like an answer to the census. It speaks of a moment before this server
// read its commit index, and after the read began; that nobody else had been elected by then is
// what matters. ok is false when that cannot be said at once.
func (n *Node) confirmBy(vote readVote) (revision uint64, ok bool) {
	if _, local, err := n.leaderAt(); err != nil || !local || n.guard.Err() != nil {
		return 0, false
	}
	term := n.leader.Term()
	if term == 0 || vote.term > term {
		return 0, false
	}
	voters, agree := 0, 0
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		if voters++; string(s.ID) == n.id.ServerID || string(s.ID) == vote.id {
			agree++
		}
	}
	if agree < voters/2+1 {
		return 0, false
	}
	committed := n.raft.CommitIndex()
	if n.raft.CurrentTerm() != term || n.fsm.Applied().Index < committed {
		return 0, false
	}
	return n.fsm.State().Revision(), true
}

// census asks the other voters in which term they are. Each gets one question at a time; whoever
// wants to know meanwhile waits for the next one, because the one under way may be older than his
// reading.
type census struct {
	members func() []group.Member
	termOf  func(addr string) (uint64, error)
	running *sync.WaitGroup // of the node

	mu      sync.Mutex
	waiting map[string][]*ballot // by the address of a voter with a question under way
}

// ballot counts the voters that are in no later term.
type ballot struct {
	term uint64
	done chan struct{} // closed when it is decided

	mu        sync.Mutex
	missing   int // votes until it is won
	open      int // voters that have not answered
	undecided bool
	err       error
}

// take returns nil when a quorum was in no later term after take was called.
func (c *census) take(ctx context.Context, term uint64) error {
	voters, others := 0, []string(nil)
	for _, m := range c.members() {
		if m.Voter {
			voters++
			if !m.Self {
				others = append(others, m.Address)
			}
		}
	}
	b := &ballot{term: term, done: make(chan struct{}), undecided: true, open: len(others)}
	b.missing = voters/2 + 1 - (voters - len(others))
	if b.missing <= 0 {
		return nil
	}
	for _, addr := range others {
		c.ask(addr, b)
	}
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", kv.ErrUnavailable, context.Cause(ctx))
	}
}

func (c *census) ask(addr string, b *ballot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if queue, busy := c.waiting[addr]; busy {
		c.waiting[addr] = append(queue, b)
		return
	}
	c.waiting[addr] = nil
	c.running.Go(func() { c.run(addr, []*ballot{b}) }) // ends with the last ballot, or with the node
}

func (c *census) run(addr string, ballots []*ballot) {
	for len(ballots) > 0 {
		term, err := c.termOf(addr)
		for _, b := range ballots {
			b.count(term, err)
		}
		c.mu.Lock()
		ballots = c.waiting[addr]
		if c.waiting[addr] = nil; len(ballots) == 0 {
			delete(c.waiting, addr)
		}
		c.mu.Unlock()
	}
}

// termOf asks another server for its term.
func (n *Node) termOf(addr string) (uint64, error) {
	ctx, cancel := context.WithTimeout(n.ctx, n.cfg.Timeouts.Call)
	defer cancel()
	f, err := n.peers.At(addr).Call(ctx, peer.CallTerm, nil)
	switch {
	case err != nil:
		return 0, err
	case f.Kind != peer.AnswerOK || len(f.Payload) != 8:
		return 0, peer.AnswerError(f)
	}
	return binary.LittleEndian.Uint64(f.Payload), nil
}

// count takes one voter's answer.
func (b *ballot) count(term uint64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.undecided {
		return
	}
	b.open--
	switch {
	case err == nil && term > b.term:
		b.decide(group.ErrNoLeader)
	case err == nil:
		if b.missing--; b.missing == 0 {
			b.decide(nil)
		}
	case b.open < b.missing:
		b.decide(fmt.Errorf("%w: the leader reaches no quorum: %w", kv.ErrUnavailable, err))
	}
}

func (b *ballot) decide(err error) {
	b.undecided, b.err = false, err
	close(b.done)
}

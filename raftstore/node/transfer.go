package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/steward"
)

// transfers remembers the transfers of leadership that Raft may not be done with.
//
// To transfer, Raft gives the replication to the other server a task, through a channel with room
// for one, and waits until it is done. It gives up after a while, as when the other server does not
// answer; the task stays. A second transfer to the same server then waits for room, and takes no
// notice of its own end: if leadership ends before the replication has come back to its channel,
// that is for ever. From then on Raft believes that a transfer is under way, and whenever this
// server is elected it leads and refuses every write (raft.leadershipTransfer in 1.8.0). So there
// is no second transfer before the first one's task is gone.
type transfers struct {
	mu   sync.Mutex
	term uint64                   // in which they were; the replications end with it
	left map[raft.ServerID]uint64 // to whom a transfer was given up, and the newest entry of the log then
}

// pending returns what is known of a transfer to a server that was given up in this term.
func (t *transfers) pending(term uint64, id raft.ServerID) (newest uint64, is bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.term != term {
		return 0, false
	}
	newest, is = t.left[id]
	return newest, is
}

func (t *transfers) gaveUp(term uint64, id raft.ServerID, newest uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.term != term {
		t.term, t.left = term, make(map[raft.ServerID]uint64)
	}
	t.left[id] = newest
}

func (t *transfers) done(id raft.ServerID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.left, id)
}

// any tells whether there is a transfer in the term that was given up.
func (t *transfers) any(term uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.term == term && len(t.left) > 0
}

// transfer waits until the other server was told to stand for election, no longer than ctx. why is
// for people who ask later.
func (n *Node) transfer(ctx context.Context, m Member, why string) error {
	id, term := raft.ServerID(m.ID), n.raft.CurrentTerm()
	if newest, is := n.transfers.pending(term, id); is {
		if err := n.awaitReplication(ctx, m, newest); err != nil {
			return fmt.Errorf("%w: transfer leadership to server %q: an earlier attempt is not over: %w", kv.ErrUnavailable, m.ID, err)
		}
		n.transfers.done(id)
	}
	n.heir.Store(new(m.Name + ", because " + why))
	err := n.questions.ask(ctx, func() raft.Future { return n.raft.LeadershipTransferToServer(id, raft.ServerAddress(m.Address)) })
	if err != nil {
		n.heir.Store(nil)
		n.transfers.gaveUp(term, id, n.raft.LastIndex())
		return fmt.Errorf("%w: transfer leadership to server %q: %w", kv.ErrUnavailable, m.ID, err)
	}
	return nil
}

// awaitReplication waits, for a short time, until a member has an entry that is newer than the one
// given: then the replication to it does its work again.
func (n *Node) awaitReplication(ctx context.Context, m Member, newest uint64) error {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.Timeouts.Call)
	defer cancel()
	if n.raft.LastIndex() <= newest {
		_ = n.questions.ask(ctx, func() raft.Future { return n.beginMark() }) // whether there is a newer entry is looked at below
	}
	for {
		status, err := n.ask(ctx, m)
		if err == nil && status.LastIndex > newest {
			return nil
		}
		select {
		case <-ctx.Done():
			if err == nil {
				err = fmt.Errorf("it has nothing of the log behind entry %d", newest)
			}
			return err
		case <-time.After(departureLook):
		}
	}
}

// HandOver makes another voter the leader if this server leads and there is one. It returns when
// this server does not lead any more, or with an error when it still does after three times
// Timeouts.Election, as when its disk hangs.
func (n *Node) HandOver() error {
	if n.leadership.term() == 0 || n.voters() < 2 {
		return nil
	}
	return n.bequeath("it stops", false)
}

// bequeath makes another voter the leader, because this server stops or must not lead: one that
// lives, which Raft would not know. It fails at once when nobody could take the office: when too
// few voters answer, of whom this server is one if it stays.
func (n *Node) bequeath(why string, stays bool) error {
	if n.deserted() {
		return errNoHeir
	}
	ctx, cancel := context.WithTimeout(n.ctx, n.transferTime())
	defer cancel()
	servers := n.surveyFor(ctx, n.cfg.Timeouts.Heartbeat/2) // who is slower is no heir at once
	voters, votes := 0, 0
	for _, s := range servers {
		if self := s.ID == n.id.ServerID; s.Voter {
			voters++
			if self && stays || !self && s.Answers {
				votes++
			}
		}
	}
	if votes < voters/2+1 {
		return errNoHeir
	}
	if heir, ok := steward.Heir(servers, n.id.ServerID); ok {
		m, _ := n.member(heir.ID)
		return n.transfer(ctx, m, why)
	}
	if n.transfers.any(n.raft.CurrentTerm()) {
		return errNoHeir
	}
	n.heir.Store(new("a server of Raft's choice, because " + why))
	err := n.questions.ask(ctx, n.raft.LeadershipTransfer) // to the one that has the most of the log
	if err != nil {
		n.heir.Store(nil)
	}
	return err
}

var errNoHeir = fmt.Errorf("%w: too few voters answer for another one to lead", kv.ErrUnavailable)

// transferTime bounds a transfer that nobody waits for with a bound of their own: Raft gives one up
// after Timeouts.Election.
func (n *Node) transferTime() time.Duration { return 3 * n.cfg.Timeouts.Election }

func (n *Node) surveyFor(ctx context.Context, limit time.Duration) []steward.Server {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return n.survey(ctx)
}

// deserted tells that this server, which leads, knows of all other voters that they do not answer.
func (n *Node) deserted() bool {
	silent, _ := n.Silent()
	for _, m := range n.others() {
		if m.Voter && !slices.ContainsFunc(silent, func(s SilentMember) bool { return s.ID == m.ID }) {
			return false
		}
	}
	return true
}

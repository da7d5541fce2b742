package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/autopilot"
	"github.com/barque/barque/raftstore/election"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
)

// transfer waits until the other server was told to stand for election, no longer than ctx. why is
// for people who ask later.
func (n *Node) transfer(ctx context.Context, m group.Member, why string) error {
	id, term := raft.ServerID(m.ID), n.raft.CurrentTerm()
	if newest, is := n.transfers.Pending(term, id); is {
		if err := n.awaitReplication(ctx, m, newest); err != nil {
			return fmt.Errorf("%w: transfer leadership to server %q: an earlier attempt is not over: %w", kv.ErrUnavailable, m.ID, err)
		}
		n.transfers.Done(id)
	}
	n.heir.Store(new(m.Name + ", because " + why))
	err := n.questions.Ask(ctx, func() raft.Future { return n.raft.LeadershipTransferToServer(id, raft.ServerAddress(m.Address)) })
	if err != nil {
		n.heir.Store(nil)
		n.transfers.GaveUp(term, id, n.raft.LastIndex())
		return fmt.Errorf("%w: transfer leadership to server %q: %w", kv.ErrUnavailable, m.ID, err)
	}
	return nil
}

// replicationLook is how often it is looked whether the replication goes on.
const replicationLook = 25 * time.Millisecond

// awaitReplication waits, for a short time, until a member has an entry that is newer than the one
// given: then the replication to it does its work again.
func (n *Node) awaitReplication(ctx context.Context, m group.Member, newest uint64) error {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.Timeouts.Call)
	defer cancel()
	if n.raft.LastIndex() <= newest {
		_ = n.questions.Ask(ctx, func() raft.Future { return n.beginMark() }) // whether there is a newer entry is looked at below
	}
	for {
		status, err := n.board.Ask(ctx, m)
		if err == nil && status.LastIndex > newest {
			return nil
		}
		select {
		case <-ctx.Done():
			if err == nil {
				err = fmt.Errorf("it has nothing of the log behind entry %d", newest)
			}
			return err
		case <-time.After(replicationLook):
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
	if heir, ok := autopilot.Transferee(servers, n.id.ServerID); ok {
		m, _ := n.member(heir.ID)
		return n.transfer(ctx, m, why)
	}
	if n.transfers.Any(n.raft.CurrentTerm()) {
		return errNoHeir
	}
	n.heir.Store(new("a server of Raft's choice, because " + why))
	err := n.questions.Ask(ctx, n.raft.LeadershipTransfer) // to the one that has the most of the log
	if err != nil {
		n.heir.Store(nil)
	}
	return err
}

var errNoHeir = fmt.Errorf("%w: too few voters answer for another one to lead", kv.ErrUnavailable)

// transferTime bounds a transfer that nobody waits for with a bound of their own: Raft gives one up
// after Timeouts.Election.
func (n *Node) transferTime() time.Duration { return 3 * n.cfg.Timeouts.Election }

func (n *Node) surveyFor(ctx context.Context, limit time.Duration) []autopilot.Server {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return n.autopilot.Observe(ctx)
}

// deserted tells that this server, which leads, knows of all other voters that they do not answer.
func (n *Node) deserted() bool {
	silent, _ := n.Silent()
	for _, m := range n.others() {
		if m.Voter && !slices.ContainsFunc(silent, func(s election.SilentMember) bool { return s.ID == m.ID }) {
			return false
		}
	}
	return true
}

package leader

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

// Transfer returns when the other server has the order to campaign, or when ctx ends. why is the
// reason in the history for people.
func (l *Leadership) Transfer(ctx context.Context, m group.Member, why string) error {
	id, term := raft.ServerID(m.ID), l.parts.Raft.CurrentTerm()
	if newest, is := l.transfers.Pending(term, id); is {
		if err := l.awaitReplication(ctx, m, newest); err != nil {
			return fmt.Errorf("%w: transfer leadership to server %q: an earlier attempt is not over: %w",
				kv.ErrUnavailable, m.ID, err)
		}
		l.transfers.Done(id)
	}
	l.transferee.Store(new(m.Name + ", because " + why))
	err := l.parts.Raft.Ask(ctx,
		func() raft.Future { return l.parts.Raft.LeadershipTransferToServer(id, raft.ServerAddress(m.Address)) })
	if err != nil {
		l.transferee.Store(nil)
		l.transfers.GaveUp(term, id, l.parts.Raft.LastIndex())
		return fmt.Errorf("%w: transfer leadership to server %q: %w", kv.ErrUnavailable, m.ID, err)
	}
	return nil
}

// replicationLook is how often a member is asked how far the replication to it has come.
const replicationLook = 25 * time.Millisecond

// awaitReplication waits, for a short time, until a member has an entry after the given one: then
// replication to it works again.
func (l *Leadership) awaitReplication(ctx context.Context, m group.Member, newest uint64) error {
	ctx, cancel := context.WithTimeout(ctx, l.opts.Timeouts.Call)
	defer cancel()
	if l.parts.Raft.LastIndex() <= newest {
		// the check below looks for a newer entry
		_ = l.parts.Raft.Ask(ctx, func() raft.Future { return l.server.NoOp() })
	}
	for {
		status, err := l.parts.Survey.Ask(ctx, m)
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

// ErrNoTransferee is returned if no other server could lead, in this server's view.
var ErrNoTransferee = fmt.Errorf("%w: too few voters answer for another one to lead", kv.ErrUnavailable)

// Leave makes another voter the leader, because this server stops, if it leads and there is one. It
// returns when this server no longer leads. It returns an error if it still leads after three times
// Timeouts.Election, as with a hanging disk.
func (l *Leadership) Leave(ctx context.Context) error {
	if l.Term() == 0 || group.Voters(l.server.Members()) < 2 {
		return nil
	}
	return l.HandOver(ctx, "it stops", false)
}

// HandOver makes another voter the leader, because this server stops or must not lead. It selects a
// living one, which Raft could not. It fails at once if too few voters answer for another one to
// lead; this server counts if it stays.
func (l *Leadership) HandOver(ctx context.Context, why string, stays bool) error {
	ctx, cancel := context.WithTimeout(ctx, l.transferTime())
	defer cancel()
	servers, err := l.electorate(ctx, stays)
	if err != nil {
		return err
	}
	if to, ok := autopilot.Transferee(servers, l.opts.ID); ok {
		m, _ := group.Find(l.server.Members(), to.ID)
		return l.Transfer(ctx, m, why)
	}
	if l.transfers.Any(l.parts.Raft.CurrentTerm()) {
		return ErrNoTransferee
	}
	l.transferee.Store(new("a server of Raft's choice, because " + why))
	err = l.parts.Raft.Ask(ctx, l.parts.Raft.LeadershipTransfer) // to the one with the longest log
	if err != nil {
		l.transferee.Store(nil)
	}
	return err
}

// HandOverTo makes a voter the leader that may lead, by its ID. It fails with ErrNoTransferee if
// there is none that is able: this server leads on.
func (l *Leadership) HandOverTo(ctx context.Context, why string, may func(id string) bool) error {
	ctx, cancel := context.WithTimeout(ctx, l.transferTime())
	defer cancel()
	servers, err := l.electorate(ctx, true)
	if err != nil {
		return err
	}
	to, ok := autopilot.Transferee(slices.DeleteFunc(servers, func(s autopilot.Server) bool { return !may(s.ID) }),
		l.opts.ID)
	if !ok {
		return ErrNoTransferee
	}
	m, _ := group.Find(l.server.Members(), to.ID)
	return l.Transfer(ctx, m, why)
}

// electorate returns the servers as they are now. It fails with ErrNoTransferee if too few voters
// answer for another one to lead; this server counts if it stays.
func (l *Leadership) electorate(ctx context.Context, stays bool) ([]autopilot.Server, error) {
	if l.deserted() {
		return nil, ErrNoTransferee
	}
	servers := l.observe(ctx, l.opts.Timeouts.Heartbeat/2) // a slower one cannot lead at once
	voters, votes := 0, 0
	for _, s := range servers {
		if self := s.ID == l.opts.ID; s.Voter {
			voters++
			if self && stays || !self && s.Answers {
				votes++
			}
		}
	}
	if votes < voters/2+1 {
		return nil, ErrNoTransferee
	}
	return servers, nil
}

// transferTime bounds a transfer whose caller has no bound: Raft abandons one after
// Timeouts.Election.
func (l *Leadership) transferTime() time.Duration { return 3 * l.opts.Timeouts.Election }

func (l *Leadership) observe(ctx context.Context, limit time.Duration) []autopilot.Server {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return l.server.Observe(ctx)
}

// deserted reports whether this leading server knows that no other voter answers.
func (l *Leadership) deserted() bool {
	silent, _ := l.parts.Elections.Silent()
	for _, m := range l.server.Members() {
		if !m.Self && m.Voter &&
			!slices.ContainsFunc(silent, func(s election.SilentMember) bool { return s.ID == m.ID }) {
			return false
		}
	}
	return true
}

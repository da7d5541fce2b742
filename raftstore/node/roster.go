package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/disk"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
)

// standing returns what this server knows to be decided about another one, or about itself.
func (n *Node) standing(id string) group.Decision {
	return group.DecisionOf(n.state.Latest(), id)
}

// roster returns all that is decided, by ID.
func (n *Node) roster() map[string]group.Decision { return group.Decisions(n.state.Latest()) }

// decide writes to the roster, unless it was changed since old was read, or another term than the
// one in which it was decided has begun: whoever leads then decides by what he sees. The zero
// standing deletes.
func (n *Node) decide(ctx context.Context, term uint64, id string, old, new group.Decision) error {
	new.Since = n.cfg.Now().UnixMilli()
	op, err := new.Op(id)
	if err != nil {
		return err
	}
	outcome, err := n.Propose(ctx, &command.Request{Kind: command.KindTxn, Txn: kv.Txn{
		Require: []kv.Precondition{{Key: op.Key, ModRevision: old.Revision}}, Ops: []kv.Op{op}, Term: term,
	}})
	if err != nil {
		return err
	}
	_, err = outcome.Result()
	var conflict *kv.ConflictError
	switch {
	case errors.Is(err, kv.ErrFenced):
		return errNoLeader
	case errors.As(err, &conflict):
		return fmt.Errorf("%w: somebody else decided about server %q at the same time", kv.ErrUnavailable, id)
	}
	return err
}

// Leaving tells whether it is recorded that a member leaves, as this server knows.
func (n *Node) Leaving(id string) bool { return n.standing(id).State == group.Leaving }

// Gone returns who was taken out of the group, by ID, as this server knows.
func (n *Node) Gone() map[string]group.Removal {
	gone := make(map[string]group.Removal)
	for id, s := range n.roster() {
		if s.State == group.Removed || s.State == group.Dropped {
			gone[id] = s.Removal()
		}
	}
	return gone
}

// expelled takes note that this server is a member no more.
func (n *Node) expelled(r group.Removal) {
	n.removal.Do(func() {
		n.cfg.Logger.Error("this server was taken out of the cluster", "server", n.id.ServerID, "at", r.At, "why", r.Why)
		if !n.cfg.InMemory {
			if err := disk.MarkRemoved(n.cfg.Dir, r); err != nil { // the others will tell it again at the next start
				n.cfg.Logger.Warn("cannot mark the directory of a server that was removed", "err", err)
			}
		}
		n.removed.Store(&r)
		close(n.out)
		if n.cfg.OnRemoved != nil {
			n.cfg.OnRemoved(r)
		}
	})
}

package autopilot

import (
	"context"
	"errors"
	"fmt"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/disk"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
)

// Decide writes a decision. It fails if the decision has changed since old was read, or if the term
// in which it was made has ended: the new leader decides by its own observation. The zero Decision
// deletes.
func (a *Manager) Decide(ctx context.Context, term uint64, id string, old, new group.Decision) error {
	new.Since = a.opts.Now().UnixMilli()
	op, err := new.Op(id)
	if err != nil {
		return err
	}
	outcome, err := a.server.Propose(ctx, &command.Request{Kind: command.KindTxn, Txn: kv.Txn{
		Require: []kv.Precondition{{Key: op.Key, ModRevision: old.Revision}}, Ops: []kv.Op{op}, Term: term,
	}})
	if err != nil {
		return err
	}
	_, err = outcome.Result()
	var conflict *kv.ConflictError
	switch {
	case errors.Is(err, kv.ErrFenced):
		return group.ErrNoLeader
	case errors.As(err, &conflict):
		return fmt.Errorf("%w: another decision about server %q was made at the same time", kv.ErrUnavailable, id)
	}
	return err
}

// Expelled notes that this server is a member no more.
func (a *Manager) Expelled(r group.Removal) {
	a.removal.Do(func() {
		a.opts.Logger.Error("this server was taken out of the cluster", "server", a.opts.ID, "at", r.At,
			"reason", r.Why)
		if a.opts.Dir != "" {
			if err := disk.MarkRemoved(a.opts.Dir, r); err != nil { // the others will report it again at the next start
				a.opts.Logger.Warn("cannot mark the directory of a server that was removed", "err", err)
			}
		}
		a.removed.Store(&r)
		close(a.out)
		if a.opts.OnRemoved != nil {
			a.opts.OnRemoved(r)
		}
	})
}

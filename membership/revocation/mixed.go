package revocation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// mixedAt is the record that a server of an earlier version was a member. It names the server.
//
// Such a server, when it led, has neither recorded nor revoked anything: after the way back and
// forward again, the recorded Nodes and keys may be of the time before. So nothing is judged by
// them while the record is there. The leader removes it when all servers are of this version, after
// it has recorded the Nodes anew and dropped the keys, which are recorded again when agents call.
const mixedAt = "mixed"

// Mixed reports whether a server of an earlier version was a member, as this server knows.
func (b *Book) Mixed(ctx context.Context) (bool, error) {
	is, err := b.Store.Known(ctx, mixedAt)
	return len(is) > 0, err
}

// NoteMixed records that servers of an earlier version are or were members: for the leader in its
// term, for a server about itself with 0.
func (b *Book) NoteMixed(ctx context.Context, term uint64, servers ...string) error {
	for ctx.Err() == nil {
		_, revision, err := b.Store.Get(ctx, mixedAt)
		if err != nil || revision > 0 {
			return err
		}
		if _, won, err := b.Store.Commit(ctx, term,
			Change{Name: mixedAt, Value: []byte(strings.Join(servers, " "))}); err != nil || won {
			return err
		}
	}
	return context.Cause(ctx)
}

// judges reports whether the records are of the time since all servers are of this version. It
// makes them anew where they are not.
func (k *Keeper) judges(ctx context.Context, term uint64) (bool, error) {
	if k.Earlier == nil {
		return true, nil
	}
	ran, may, err := k.Earlier(ctx)
	if err != nil {
		return false, err
	}
	if earlier := append(ran, may...); len(earlier) > 0 {
		if now := k.Now(); now.Sub(k.said).Abs() >= sayAgain {
			k.said = now
			k.Logger.Warn(
				"no agent's certificates are revoked by the deletion of its Node: servers of an earlier version are members", "servers", earlier)
		}
		if len(ran) == 0 {
			return false, nil
		}
		return false, k.NoteMixed(ctx, term, ran...)
	}
	_, at, err := k.Store.Get(ctx, mixedAt)
	if err != nil || at == 0 {
		return err == nil, err
	}
	if !k.Settled() {
		return false, nil // while the CA is exchanged no key is learned
	}
	if err := k.anew(ctx, term, at); err != nil {
		return false, fmt.Errorf("record the agents anew after a time with servers of an earlier version: %w", err)
	}
	k.Logger.Info("all servers are of this version: the Nodes of agents are recorded anew")
	return true, nil
}

var errFaster = errors.New("another write was faster")

// anew records the present Nodes of agents, drops their keys, and removes the record at mixedAt.
func (k *Keeper) anew(ctx context.Context, term, at uint64) error {
	write := func(c Change) error {
		_, won, err := k.Store.Commit(ctx, term, c)
		if err == nil && !won {
			err = errFaster
		}
		return err
	}
	records, err := k.Store.Known(ctx, agentsAt)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(records)) {
		recorded, revision, err := k.Store.Get(ctx, agentsAt+name)
		if err != nil {
			return err
		}
		uid, err := k.Node(ctx, name)
		if err != nil {
			return err
		}
		if revision == 0 || uid == string(recorded) {
			continue
		}
		is := Change{Name: agentsAt + name, Revision: revision}
		if uid != "" {
			is.Value = []byte(uid)
		}
		if err := write(is); err != nil {
			return err
		}
	}
	keys, err := k.Store.Known(ctx, keysAt)
	if err != nil {
		return err
	}
	for name := range keys {
		_, revision, err := k.Store.Get(ctx, keysAt+name)
		if err == nil && revision > 0 {
			err = write(Change{Name: keysAt + name, Revision: revision})
		}
		if err != nil {
			return err
		}
	}
	return write(Change{Name: mixedAt, Revision: at})
}

package adapters

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/register"
)

// RevokedRecords is the folder as packages revocation and judge have it.
type RevokedRecords struct {
	register.Folder
	Store *raftstore.Server
}

// Revision implements revocation.Store.
func (r RevokedRecords) Revision() uint64 { return r.Store.Revision() }

// Commit implements revocation.Store.
func (r RevokedRecords) Commit(ctx context.Context, term uint64, changes ...revocation.Change) (uint64, bool, error) {
	all := make([]register.Change, len(changes))
	for i, c := range changes {
		all[i] = register.Change(c)
	}
	return r.Folder.Commit(ctx, term, all...)
}

// Members implements judge.Store.
func (r RevokedRecords) Members() map[string]string {
	names := map[string]string{}
	for _, m := range r.Store.Members() {
		names[m.ID] = m.Name
	}
	return names
}

// Removed implements judge.Store.
func (r RevokedRecords) Removed() (out []revocation.Removed) {
	for id, gone := range r.Store.Gone() {
		if !gone.Dropped {
			out = append(out, revocation.Removed{ID: id, Name: gone.Name, Why: gone.Why, At: gone.At})
		}
	}
	slices.SortFunc(out, func(a, b revocation.Removed) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// Await implements judge.Store.
func (r RevokedRecords) Await(ctx context.Context, revision uint64) error {
	_, err := r.Store.View(ctx, raftstore.ViewOptions{Stale: true, MinRevision: revision})
	return err
}

// OrderedRemovals is the store for operators: the list of revocations names who removed a server.
type OrderedRemovals struct {
	*raftstore.Server
	Book   *revocation.Book
	Logger *slog.Logger
}

// Remove implements adminapi.MemberStore.
func (o OrderedRemovals) Remove(ctx context.Context, id, why string) error {
	if who, ok := request.UserFrom(ctx); ok {
		if err := o.Book.Order(ctx, id, who.GetName()); err != nil {
			o.Logger.Info("the list of revoked certificates will not say by whose order a server was removed", "id", id,
				"err", err)
		}
	}
	err := o.Server.Remove(ctx, id, why)
	// After other errors it may have happened: the note stays.
	if _, refused := errors.AsType[*raftstore.RefusedError](err); refused || errors.Is(err, raftstore.ErrNoLeader) {
		o.stays(ctx, id)
	}
	return err
}

// Promote implements adminapi.MemberStore. It may take a removal back.
func (o OrderedRemovals) Promote(ctx context.Context, id string) error {
	err := o.Server.Promote(ctx, id)
	if err == nil {
		o.stays(ctx, id)
	}
	return err
}

func (o OrderedRemovals) stays(ctx context.Context, id string) {
	if err := o.Book.CancelOrder(ctx, id); err != nil {
		o.Logger.Info("the order to remove a server that stays is still noted", "id", id, "err", err)
	}
}

// Package register keeps one value under one key of the store: a register, which is read with its
// revision, replaced if it has not changed since, and followed. It is for values that a cluster
// must agree on outside the API's objects, such as its gossip keys and its CAs.
package register

import (
	"context"
	"errors"
	"time"

	"github.com/barque/barque/raftstore"
)

// Store is the register's interface of the store.
type Store interface {
	View(ctx context.Context, opts raftstore.ViewOptions) (raftstore.View, error)
	Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error)
	Watch(opts raftstore.WatchOptions) (raftstore.Watcher, error)
}

// Register is one key of a store.
type Register struct {
	store Store
	key   string
}

// New returns the register at the key.
func New(store Store, key string) Register { return Register{store, key} }

// Get returns the newest value and the revision of its last change; 0 is no value. The read is
// linearizable.
func (r Register) Get(ctx context.Context) ([]byte, uint64, error) {
	view, err := r.store.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		return nil, 0, err
	}
	item, _ := view.Get(r.key)
	return item.Value, item.ModRevision, nil
}

// Put sets the value if its revision is still the given one, and, unless term is 0, only during
// that term of the leader. It fails with a *raftstore.ConflictError if another write was faster,
// and with raftstore.ErrFenced if the term is over.
func (r Register) Put(ctx context.Context, value []byte, revision, term uint64) error {
	_, err := r.store.Commit(ctx, raftstore.Txn{
		Require: []raftstore.Precondition{{Key: r.key, ModRevision: revision}},
		Ops:     []raftstore.Op{{Kind: raftstore.Put, Key: r.key, Value: value}},
		Term:    term,
	})
	return err
}

// followAgain is the pause before an ended watch is restarted.
const followAgain = time.Second

// Follow calls f with the value that this server has, and then after each change, until ctx ends.
func (r Register) Follow(ctx context.Context, f func(value []byte, revision uint64)) error {
	return untilClosed(ctx, func() error { return r.follow(ctx, f) })
}

// untilClosed repeats an ended watch, until ctx ends.
func untilClosed(ctx context.Context, watch func() error) error {
	for {
		err := watch()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, raftstore.ErrClosed):
			<-ctx.Done() // the store itself logs why it stopped
			return nil
		case !errors.Is(err, raftstore.ErrCompacted): // another look handles that one
			select {
			case <-ctx.Done():
			case <-time.After(followAgain): // as when the server is in quarantine
			}
		}
	}
}

// follow watches before it looks: a watch after the revision of an empty store would begin after
// it, and miss a change between.
func (r Register) follow(ctx context.Context, f func(value []byte, revision uint64)) error {
	w, err := r.store.Watch(raftstore.WatchOptions{Prefix: r.key})
	if err != nil {
		return err
	}
	defer w.Close()
	view, err := r.store.View(ctx, raftstore.ViewOptions{Stale: true})
	if err != nil {
		return err
	}
	item, _ := view.Get(r.key)
	f(item.Value, item.ModRevision)
	for {
		batch, err := w.Next(ctx)
		if err != nil {
			return err
		}
		if batch.Revision <= view.Revision() {
			continue
		}
		for _, event := range batch.Events {
			switch {
			case event.Item.Key != r.key:
			case event.Kind == raftstore.Deleted:
				f(nil, 0)
			default:
				f(event.Item.Value, event.Item.ModRevision)
			}
		}
	}
}

// Look returns the value, the revision of its last change, and the revision of the store at which
// it was read: the newest one, or that of this server.
func (r Register) Look(ctx context.Context, newest bool) (value []byte, revision, at uint64, err error) {
	view, err := r.store.View(ctx, raftstore.ViewOptions{Stale: !newest})
	if err != nil {
		return nil, 0, 0, err
	}
	item, _ := view.Get(r.key)
	return item.Value, item.ModRevision, view.Revision(), nil
}

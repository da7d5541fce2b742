package node

import (
	"context"
	"errors"
	"time"

	"github.com/barque/barque/raftstore"
)

// caKeyInStore is where the state of the exchange of the CA lies in the store. It is none of the
// API's objects.
const caKeyInStore = "/barque/ca"

// caShelf is the place in the store.
type caShelf struct{ store caStore }

// caStore is what the exchange of the CA needs of the store.
type caStore interface {
	View(ctx context.Context, opts raftstore.ViewOptions) (raftstore.View, error)
	Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error)
	Watch(opts raftstore.WatchOptions) (raftstore.Watcher, error)
}

// Get implements exchange.Shelf.
func (s caShelf) Get(ctx context.Context) ([]byte, uint64, error) {
	view, err := s.store.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		return nil, 0, err
	}
	item, _ := view.Get(caKeyInStore)
	return item.Value, item.ModRevision, nil
}

// Put implements exchange.Shelf.
func (s caShelf) Put(ctx context.Context, state []byte, revision, term uint64) error {
	_, err := s.store.Commit(ctx, raftstore.Txn{
		Require: []raftstore.Precondition{{Key: caKeyInStore, ModRevision: revision}},
		Ops:     []raftstore.Op{{Kind: raftstore.Put, Key: caKeyInStore, Value: state}},
		Term:    term,
	})
	return err
}

// Follow implements exchange.Shelf.
func (s caShelf) Follow(ctx context.Context, f func(state []byte, revision uint64)) error {
	for {
		view, err := s.store.View(ctx, raftstore.ViewOptions{Stale: true})
		if err == nil {
			item, _ := view.Get(caKeyInStore)
			f(item.Value, item.ModRevision)
			err = s.watch(ctx, view.Revision(), f)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, raftstore.ErrClosed):
			<-ctx.Done() // the store says by itself why it stopped
			return nil
		case !errors.Is(err, raftstore.ErrCompacted): // that one is answered by another look
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

func (s caShelf) watch(ctx context.Context, after uint64, f func(state []byte, revision uint64)) error {
	w, err := s.store.Watch(raftstore.WatchOptions{Prefix: caKeyInStore, After: after})
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		batch, err := w.Next(ctx)
		if err != nil {
			return err
		}
		for _, event := range batch.Events {
			switch {
			case event.Item.Key != caKeyInStore:
			case event.Kind == raftstore.Deleted:
				f(nil, 0)
			default:
				f(event.Item.Value, event.Item.ModRevision)
			}
		}
	}
}

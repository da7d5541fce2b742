package raftstore

import (
	"context"

	"github.com/barque/barque/raftstore/kv"
)

// Get returns the newest item with the key, and whether there is one: a linearizable read. It fails
// as View does.
func (s *Store) Get(ctx context.Context, key string) (Item, bool, error) {
	v, err := s.View(ctx, ViewOptions{})
	if err != nil {
		return Item{}, false, err
	}
	item, ok := v.Get(key)
	return item, ok, nil
}

// Put sets the key to the value unconditionally. It fails as Commit does.
func (s *Store) Put(ctx context.Context, key string, value []byte) (Result, error) {
	return s.Commit(ctx, Txn{Ops: []Op{{Kind: kv.Put, Key: key, Value: value}}})
}

// Delete removes the key, if it is there. It fails as Commit does.
func (s *Store) Delete(ctx context.Context, key string) (Result, error) {
	return s.Commit(ctx, Txn{Ops: []Op{{Kind: kv.Delete, Key: key}}})
}

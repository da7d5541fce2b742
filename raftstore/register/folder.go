package register

import (
	"context"
	"errors"
	"strings"

	"github.com/barque/barque/raftstore"
)

// Folder is the keys of a store below a prefix: small records, each of which is replaced if it has
// not changed since it was read.
type Folder struct {
	store  Store
	prefix string
}

// NewFolder returns the records below the prefix, which ends with a slash.
func NewFolder(store Store, prefix string) Folder { return Folder{store, prefix} }

// Get returns the newest value of a record and the revision of its last change; 0 is no value. The
// read is linearizable.
func (f Folder) Get(ctx context.Context, name string) ([]byte, uint64, error) {
	return Register{f.store, f.prefix + name}.Get(ctx)
}

// List returns the newest values of the records whose names begin so, by the rest of their names.
func (f Folder) List(ctx context.Context, under string) (map[string][]byte, error) {
	return f.list(ctx, under, raftstore.ViewOptions{})
}

// Known is List as this server has it. Nothing bounds its age.
func (f Folder) Known(ctx context.Context, under string) (map[string][]byte, error) {
	return f.list(ctx, under, raftstore.ViewOptions{Stale: true})
}

func (f Folder) list(ctx context.Context, under string, o raftstore.ViewOptions) (map[string][]byte, error) {
	view, err := f.store.View(ctx, o)
	if err != nil {
		return nil, err
	}
	records := map[string][]byte{}
	view.Ascend(f.prefix+under, "", func(item raftstore.Item) bool {
		records[strings.TrimPrefix(item.Key, f.prefix+under)] = item.Value
		return true
	})
	return records, nil
}

// Put sets a record if its revision is still the given one, and, unless term is 0, only during that
// term of the leader. won is false if another write was faster.
func (f Folder) Put(ctx context.Context, name string, value []byte, revision, term uint64) (won bool, err error) {
	return unlessFaster(Register{f.store, f.prefix + name}.Put(ctx, value, revision, term))
}

// Delete removes a record, with the conditions of Put.
func (f Folder) Delete(ctx context.Context, name string, revision, term uint64) (won bool, err error) {
	_, err = f.store.Commit(ctx, raftstore.Txn{
		Require: []raftstore.Precondition{{Key: f.prefix + name, ModRevision: revision}},
		Ops:     []raftstore.Op{{Kind: raftstore.Delete, Key: f.prefix + name}},
		Term:    term,
	})
	return unlessFaster(err)
}

func unlessFaster(err error) (won bool, _ error) {
	var conflict *raftstore.ConflictError
	if errors.As(err, &conflict) {
		return false, nil
	}
	return err == nil, err
}

// Change sets or removes one record of a Commit.
type Change struct {
	Name     string
	Revision uint64 // of its last change, as read; 0 is no record
	Value    []byte // nil removes it
}

// Commit makes all changes or none, with the conditions of Put, and returns the revision of the
// change.
func (f Folder) Commit(ctx context.Context, term uint64, changes ...Change) (revision uint64, won bool, err error) {
	txn := raftstore.Txn{Term: term}
	for _, c := range changes {
		op := raftstore.Op{Kind: raftstore.Put, Key: f.prefix + c.Name, Value: c.Value}
		if c.Value == nil {
			op.Kind = raftstore.Delete
		}
		txn.Require = append(txn.Require, raftstore.Precondition{Key: op.Key, ModRevision: c.Revision})
		txn.Ops = append(txn.Ops, op)
	}
	result, err := f.store.Commit(ctx, txn)
	won, err = unlessFaster(err)
	return result.Revision, won, err
}

// Follow calls f after each change of the folder, and at first, until ctx ends.
func (f Folder) Follow(ctx context.Context, changed func()) error {
	return untilClosed(ctx, func() error {
		w, err := f.store.Watch(raftstore.WatchOptions{Prefix: f.prefix})
		if err != nil {
			return err
		}
		defer w.Close()
		for {
			changed()
			if _, err := w.Next(ctx); err != nil {
				return err
			}
		}
	})
}

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

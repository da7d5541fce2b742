package storage

import (
	"context"

	"github.com/barque/barque/raftstore"
)

// Backend is the datastore of this package.
type Backend interface {
	// View returns a snapshot of the store; see raftstore.ViewOptions for which one.
	View(ctx context.Context, opts raftstore.ViewOptions) (raftstore.View, error)
	// Commit applies a transaction, or fails with *raftstore.ConflictError or one of raftstore's
	// errors.
	Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error)
	// Watch delivers the changes after a revision.
	Watch(opts raftstore.WatchOptions) (raftstore.Watcher, error)
	// Compacted is the newest revision up to which history has been dropped; 0 when none has.
	Compacted() uint64
}

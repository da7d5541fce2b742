package storage

import (
	"context"

	"github.com/barque/barque/raftstore"
)

// Backend is what this package needs of the datastore.
type Backend interface {
	// View returns a picture of the store; see raftstore.ViewOptions for which one.
	View(ctx context.Context, opts raftstore.ViewOptions) (raftstore.View, error)
	// Commit applies a transaction, or fails with *raftstore.ConflictError or one of raftstore's
	// errors.
	Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error)
	// Watch delivers what happens after a revision.
	Watch(ctx context.Context, opts raftstore.WatchOptions) (raftstore.Watcher, error)
	// CompactRevision is the oldest revision that can still be read; 0 when nothing has been
	// compacted yet.
	CompactRevision() uint64
}

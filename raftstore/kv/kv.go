// Package kv is the common vocabulary of the parts of raftstore: items, views, transactions,
// watchers and errors. Programs that use the store import raftstore, which has a name for each of
// them. This package exists so that the parts need not import the whole.
package kv

import (
	"context"
	"time"
)

// Item is one key with its value, as of one revision.
type Item struct {
	Key   string
	Value []byte // shared and immutable: callers must not change it

	CreateRevision uint64 // revision at which the key came into being
	ModRevision    uint64 // revision of its newest change
	Expires        int64  // Unix milliseconds after which the leader deletes it; 0 means never
}

// ItemOverhead is the size of each item, beyond its key and value, for the limit of the store: its
// cost in memory, rounded up.
const ItemOverhead = 64

// Undo is the step from one revision back to the one before.
type Undo struct {
	Revision uint64
	At       int64 // when it came, by its command, in Unix milliseconds
	// Before has an item for each key that the revision changed, as it was before. Where the key
	// was absent, all but Key is zero.
	Before []Item
}

// ViewOptions select a reader's snapshot of the store. The zero value asks for the newest
// linearizable state: it reflects every write acknowledged before the call of View, on any server.
type ViewOptions struct {
	// Revision pins the snapshot to exactly this revision. View fails with ErrCompacted when it
	// has left history, and with ErrFutureRevision when the store has not reached it.
	Revision uint64
	// MinRevision waits until the local tree has reached this revision and reads there without
	// asking the leader.
	MinRevision uint64
	// Stale reads this server's state without waiting. Nothing bounds its age.
	Stale bool
}

// View is an immutable snapshot of the whole store at one revision. It takes no lock and stays
// valid as long as it is referenced.
type View interface {
	Revision() uint64
	Get(key string) (Item, bool)
	// Ascend calls fn with each item whose key starts with prefix and is not below from, in key
	// order, until fn returns false.
	Ascend(prefix, from string, fn func(Item) bool)
	// Count returns how many keys Ascend would visit.
	Count(prefix, from string) int
}

// Txn is a set of operations that take effect at one revision, or not at all. A key may appear in
// one operation only.
type Txn struct {
	// Require lists the preconditions of the transaction. They are checked while the transaction is
	// applied, on every replica alike.
	Require []Precondition
	Ops     []Op
	// Term fences the transaction: if it is not zero, the store refuses it with ErrFenced unless it
	// enters the log in this Raft term.
	Term uint64
}

// Precondition demands that a key is at a given revision.
type Precondition struct {
	Key string
	// ModRevision is the revision of the key's newest change; 0 demands that the key is absent.
	ModRevision uint64
}

// ReservedPrefix is the prefix of the store's own keys. They appear in views and watches of
// everything, but only the store writes them.
const ReservedPrefix = "\x00raftstore/"

// OpKind is the kind of an operation.
type OpKind uint8

const (
	Put    OpKind = 1 // set the key to the value
	Delete OpKind = 2 // remove the key; no change when it is absent
)

// Op is one operation of a transaction.
type Op struct {
	Kind  OpKind
	Key   string
	Value []byte
	// TTL deletes the key that long after the write, by the leader's clock. 0 means never.
	TTL time.Duration
}

// Result is the outcome of a transaction that took effect.
type Result struct {
	// Revision of the transaction; the store's current revision when it changed nothing.
	Revision uint64
}

// WatchOptions select a watcher's events.
type WatchOptions struct {
	Prefix string
	// After is the last revision that the caller has seen: delivery starts with the revision that
	// follows it. 0 starts after the store's newest revision. It may lie in the future.
	After uint64
	// Progress is the interval at which Next returns an empty Batch without events. 0 means never,
	// unless RequestProgress asks for one.
	Progress time.Duration
}

// EventKind is the kind of an event.
type EventKind uint8

const (
	Created  EventKind = 1
	Modified EventKind = 2
	Deleted  EventKind = 3
)

// Event is one change of one key.
type Event struct {
	Kind EventKind
	// Item after the change. For Deleted: the key, the value it had last, its create revision,
	// and the revision of the deletion as ModRevision.
	Item Item
	// Prev is the item before the change, nil for Created.
	Prev *Item
}

// Batch holds all events of one revision that a watcher wants. A Batch without events is
// progress: everything up to and including Revision has been delivered. Events are shared between
// watchers and must not be changed.
type Batch struct {
	Revision uint64
	Events   []Event
}

// Watcher reads the event log. It is for one goroutine.
type Watcher interface {
	// Next waits for the next batch. It fails with ErrCompacted if the watcher has fallen behind
	// history, with ErrClosed if the store has stopped or the watcher was closed, or with the
	// context's cause.
	Next(ctx context.Context) (Batch, error)
	// Poll returns the next batch if there is one already. It is false otherwise, and when Next
	// would fail. It may leave progress to Next.
	Poll() (Batch, bool)
	// RequestProgress makes Next return a progress batch as soon as it has delivered everything
	// that is in the log now. Any goroutine may call it.
	RequestProgress()
	// Close releases the watcher. Any goroutine may call it, more than once.
	Close()
}

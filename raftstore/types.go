package raftstore

import (
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
)

// The vocabulary of the store. Each name is documented where it is declared, in package kv.
type (
	// Item is one key with its value, as of one revision.
	Item = kv.Item
	// ViewOptions select a reader's snapshot of the store.
	ViewOptions = kv.ViewOptions
	// View is an immutable snapshot of the whole store at one revision.
	View = kv.View
	// Txn is a set of operations that take effect at one revision, or not at all.
	Txn = kv.Txn
	// Precondition demands that a key is at a given revision.
	Precondition = kv.Precondition
	// OpKind is the kind of an operation.
	OpKind = kv.OpKind
	// Op is one operation of a transaction.
	Op = kv.Op
	// Result is the outcome of a transaction that took effect.
	Result = kv.Result
	// WatchOptions select a watcher's events.
	WatchOptions = kv.WatchOptions
	// EventKind is the kind of an event.
	EventKind = kv.EventKind
	// Event is one change of one key.
	Event = kv.Event
	// Batch holds all events of one revision that a watcher wants.
	Batch = kv.Batch
	// Watcher reads the event log.
	Watcher = kv.Watcher
	// CompactedError is the ErrCompacted of one revision, with that which history goes back to.
	CompactedError = kv.CompactedError
	// NoSpaceError is the ErrNoSpace of one transaction, with figures.
	NoSpaceError = kv.NoSpaceError
	// LeaderlessError is the ErrLeaderless of one server, with times.
	LeaderlessError = kv.LeaderlessError
	// ConflictError is returned when a precondition did not hold. Nothing was changed.
	ConflictError = kv.ConflictError
)

const (
	Put    = kv.Put    // set the key to the value
	Delete = kv.Delete // remove the key; no change when it is absent

	// ItemOverhead is the size of each item for Limits.StateBytes beyond its key and value.
	ItemOverhead = kv.ItemOverhead

	// LeaderlessAfter is the time without a leader after which an election is not the cause any
	// more.
	LeaderlessAfter = kv.LeaderlessAfter

	Created  = kv.Created
	Modified = kv.Modified
	Deleted  = kv.Deleted
)

var (
	// ErrCompacted is returned for a revision that history no longer holds.
	ErrCompacted = kv.ErrCompacted
	// ErrFutureRevision is returned for a revision that the store has not reached.
	ErrFutureRevision = kv.ErrFutureRevision
	// ErrFenced is returned for a transaction whose Term is over.
	ErrFenced = kv.ErrFenced
	// ErrUnavailable is returned when a request was certainly not executed. Repeating it is safe.
	ErrUnavailable = kv.ErrUnavailable
	// ErrOverloaded is the ErrUnavailable of a full queue: slow down before repeating.
	ErrOverloaded = kv.ErrOverloaded
	// ErrQuarantined is the ErrUnavailable of a server whose state differs from that of most
	// servers.
	ErrQuarantined = kv.ErrQuarantined
	// ErrDiskFull is the ErrUnavailable of servers whose disks are full: only deletes are accepted.
	ErrDiskFull = kv.ErrDiskFull
	// ErrNoLeader is the ErrUnavailable of a server that knows no leader at the moment: an election
	// may be under way.
	ErrNoLeader = group.ErrNoLeader
	// ErrLeaderless is the ErrUnavailable of a server that has known no leader for LeaderlessAfter.
	ErrLeaderless = kv.ErrLeaderless
	// ErrUnknownOutcome is returned when a transaction was proposed and its answer was lost.
	ErrUnknownOutcome = kv.ErrUnknownOutcome
	// ErrTooLarge is returned for a key, value or transaction over the limits.
	ErrTooLarge = kv.ErrTooLarge
	// ErrNoSpace is returned for a transaction that would make a full store grow. Deletes go
	// through.
	ErrNoSpace = kv.ErrNoSpace
	// ErrInvalid is returned for a transaction that makes no sense.
	ErrInvalid = kv.ErrInvalid
	// ErrClosed is returned after Close.
	ErrClosed = kv.ErrClosed
)

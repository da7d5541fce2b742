package kv

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrCompacted is returned for a revision that history no longer holds. The error is a
	// *CompactedError.
	ErrCompacted = errors.New("revision has been compacted")
	// ErrFutureRevision is returned for a revision that the store has not reached.
	ErrFutureRevision = errors.New("revision is in the future")
	// ErrFenced is returned for a transaction whose Term is over.
	ErrFenced = errors.New("the leadership term of this write is over")
	// ErrUnavailable is returned if a request was certainly not executed: there is no leader, it is
	// unreachable, or its queue is full. Repeating it is safe.
	ErrUnavailable = errors.New("store is unavailable")
	// ErrOverloaded is the ErrUnavailable of a full queue: the store does not repeat the request by
	// itself, so that the caller can slow down.
	ErrOverloaded = fmt.Errorf("%w: its queue is full", ErrUnavailable)
	// ErrQuarantined is the ErrUnavailable of a server whose state differs from that of most
	// servers. It serves nothing any more. Repeating the request there is useless: another server
	// answers.
	ErrQuarantined = fmt.Errorf("%w: this server is in quarantine", ErrUnavailable)
	// ErrDiskFull is the ErrUnavailable of a leader with a full disk, if no other answering server
	// has the space to lead in its place. Repeating the request is useless before an operator frees
	// space. Pure deletions are not refused.
	ErrDiskFull = fmt.Errorf("%w: the disk of this server is full", ErrUnavailable)
	// ErrLeaderless is the ErrUnavailable of a server that has known no leader for LeaderlessAfter.
	// An election takes a fraction of that: repeating the request is useless before servers are
	// back. The error is a *LeaderlessError.
	ErrLeaderless = fmt.Errorf("%w: no leader has been known for long", ErrUnavailable)
	// ErrUnknownOutcome is returned when a transaction was proposed and its answer was lost. It
	// may or may not take effect: read before repeating it.
	ErrUnknownOutcome = errors.New("outcome of the write is unknown")
	// ErrTooLarge is returned for a key, value or transaction over the limits.
	ErrTooLarge = errors.New("too large for the store")
	// ErrNoSpace is returned for a transaction that would grow a full store. It was not executed.
	// Deletes, and changes that do not make anything larger, are never refused. As soon as they
	// have freed space the store grows again. The error is a *NoSpaceError.
	ErrNoSpace = errors.New("the store is full")
	// ErrInvalid is returned for a malformed transaction: an empty key, an unknown operation, two
	// operations on one key.
	ErrInvalid = errors.New("transaction is not valid")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("store is closed")
)

// CompactedError is the ErrCompacted of one revision.
type CompactedError struct {
	Revision uint64 // that was asked for, or that a watch has come to
	Oldest   uint64 // that history goes back to
}

func (e *CompactedError) Error() string {
	return fmt.Sprintf("%v: it is %d, and history goes back to %d", ErrCompacted, e.Revision, e.Oldest)
}

// Unwrap makes it an ErrCompacted.
func (e *CompactedError) Unwrap() error { return ErrCompacted }

// NoSpaceError is the ErrNoSpace of one transaction.
type NoSpaceError struct {
	Size   int64 // size of the store's items, as in View.Size, in bytes
	Needed int64 // by how much the transaction would have made it grow
	Limit  int64 // of the server that led
}

func (e *NoSpaceError) Error() string {
	return fmt.Sprintf(
		"%v: it holds %d bytes, the limit is %d, and the transaction needs %d more; delete something, or raise the limit",
		ErrNoSpace, e.Size, e.Limit, e.Needed)
}

// Unwrap makes it an ErrNoSpace.
func (e *NoSpaceError) Unwrap() error { return ErrNoSpace }

// LeaderlessAfter is the time without a leader after which an election is not the cause any more.
const LeaderlessAfter = 10 * time.Second

// LeaderlessError is the ErrLeaderless of one server. It counts from this server's last contact
// with a leader, or from its start.
type LeaderlessError struct {
	For    time.Duration // how long no leader has been known
	Reason string        // since when, and the condition for a new leader; for people
}

func (e *LeaderlessError) Error() string { return fmt.Sprintf("%v: %s", ErrUnavailable, e.Reason) }

// Unwrap makes it an ErrLeaderless.
func (e *LeaderlessError) Unwrap() error { return ErrLeaderless }

// ConflictError is returned when a precondition did not hold. Nothing was changed.
type ConflictError struct {
	// Key is the first key, in the order of Txn.Require, whose precondition failed.
	Key string
	// Current is the present item, nil if the key is absent.
	Current *Item
	// Revision of the store at which the precondition was checked.
	Revision uint64
}

func (e *ConflictError) Error() string {
	if e.Current == nil {
		return fmt.Sprintf("precondition failed: key %q does not exist at revision %d", e.Key, e.Revision)
	}
	return fmt.Sprintf("precondition failed: key %q was last changed at revision %d", e.Key, e.Current.ModRevision)
}

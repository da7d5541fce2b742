package member

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/barque/barque/raftstore"
)

// Options are the options of a member's store, apart from its place in the group. Zero values mean
// the store's defaults.
type Options struct {
	LogStore                    string // "boltdb" or "wal"
	Timeouts                    raftstore.Timeouts
	Limits                      raftstore.Limits
	SnapshotEvery, TrailingLogs uint64
	QueueLength                 int
	RetryFor                    time.Duration
}

// OpenArgs give a new process its place in the group. They are those of Member.Open.
type OpenArgs struct {
	Name, Dir, Address   string
	Relay                int // octet by which it dials others; 0: directly
	Certificate, Key, CA []byte
	Bootstrap            bool
	ClusterID            string
	Options              Options
	Arm                  ArmArgs // armed before the store is opened
}

// OpenReply is the answer to Member.Open.
type OpenReply struct {
	ID     string
	Took   time.Duration
	Failed Failure
}

// Failure is an error on its way to the driver.
type Failure struct {
	Code     int // 0: none; else the place in codes, from 1, or codeOther
	Text     string
	Conflict *raftstore.ConflictError
	Refused  *raftstore.RefusedError
}

const codeOther = -1

// codes are the errors that the driver distinguishes, those that are kinds of others first.
var codes = []error{
	raftstore.ErrUnknownOutcome, raftstore.ErrOverloaded, raftstore.ErrQuarantined, raftstore.ErrUnavailable,
	raftstore.ErrCompacted, raftstore.ErrFutureRevision, raftstore.ErrFenced, raftstore.ErrTooLarge,
	raftstore.ErrInvalid, raftstore.ErrClosed, context.DeadlineExceeded, context.Canceled,
}

// FailureOf packs an error, which may be nil.
func FailureOf(err error) Failure {
	if err == nil {
		return Failure{}
	}
	f := Failure{Code: codeOther, Text: err.Error()}
	if errors.As(err, &f.Conflict) || errors.As(err, &f.Refused) {
		return f
	}
	for i, known := range codes {
		if errors.Is(err, known) {
			f.Code = i + 1
			return f
		}
	}
	return f
}

// Err returns the error that the member had, so that errors.Is and errors.As find the same in it
// as there.
func (f Failure) Err(member string) error {
	switch {
	case f.Code == 0:
		return nil
	case f.Conflict != nil:
		return f.Conflict
	case f.Refused != nil:
		return f.Refused
	case f.Code == codeOther:
		return fmt.Errorf("member %s: %s", member, f.Text)
	}
	return &remoteError{text: fmt.Sprintf("member %s: %s", member, f.Text), kind: codes[f.Code-1]}
}

type remoteError struct {
	text string
	kind error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.kind }

// CommitArgs are those of Member.Commit. Timeout is the member's.
type CommitArgs struct {
	Txn     raftstore.Txn
	Timeout time.Duration
}

// CommitReply is the answer to Member.Commit.
type CommitReply struct {
	Result raftstore.Result
	Failed Failure
}

// ListArgs choose the keys of a list.
type ListArgs struct {
	Prefix, From string
	Limit        int // 0: all
	View         raftstore.ViewOptions
}

// ViewArgs are those of Member.View.
type ViewArgs struct {
	ListArgs
	One     bool // only the key From
	Timeout time.Duration
}

// ViewReply is the answer to Member.View.
type ViewReply struct {
	Items    []raftstore.Item
	Revision uint64
	Failed   Failure
}

// WatchArgs are those of Member.Watch.
type WatchArgs struct{ Options raftstore.WatchOptions }

// WatchReply is the answer to Member.Watch: the number by which the others know the watcher.
type WatchReply struct {
	ID     uint64
	Failed Failure
}

// NextArgs are those of Member.Next, Progress and Unwatch. Timeout is how long Next waits for a
// batch.
type NextArgs struct {
	ID      uint64
	Timeout time.Duration
}

// NextReply is the answer to Member.Next.
type NextReply struct {
	Batches []raftstore.Batch
	Failed  Failure // of the watch after the batches
}

// StatusReply is the answer to Member.Status.
type StatusReply struct {
	Status  raftstore.Status
	Members []raftstore.Member
}

// Change is a change of the group's members, or another act that has no result.
type Change struct {
	Kind      ChangeKind
	ID        string   // of Remove and Transfer
	Addresses []string // of Join
	Revision  uint64   // of Compact
}

// ChangeKind is the kind of a change.
type ChangeKind int

// Kinds of changes: the methods of raftstore.Server with these names.
const (
	Join ChangeKind = iota + 1
	Remove
	Transfer
	Snapshot
	Compact
)

// ChangeArgs are those of Member.Change.
type ChangeArgs struct {
	Change  Change
	Timeout time.Duration
}

// ClockArgs are those of Member.Clock.
type ClockArgs struct{ Offset time.Duration }

// ArmArgs are those of Member.Arm: the process kills itself when it comes to the fault point for
// the Hit-th time, from 1. An empty Point disarms it.
type ArmArgs struct {
	Point string
	Hit   int
}

// FailureReply is the answer to a call without a result.
type FailureReply struct{ Failed Failure }

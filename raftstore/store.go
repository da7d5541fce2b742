package raftstore

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/mvcc"
)

// Limits bound callers' requests and the history. Zero values mean the defaults.
type Limits struct {
	KeyBytes   int // longest key; default 4 KiB
	ValueBytes int // longest value; default 1.5 MiB
	// TxnBytes is for all keys and values of one transaction, so it is no less than KeyBytes and
	// ValueBytes together, and no more than MaxTxnBytes. Default: 4 MiB, or the sum of those two.
	TxnBytes int
	TxnOps   int // operations and preconditions of one transaction; default 1024, at most MaxTxnOps
	// StateBytes bounds the size of all items together: keys, values, and kv.ItemOverhead for each.
	// A request that would exceed it fails with ErrNoSpace. The leader's limit applies, for all
	// servers alike. History and the readers' trees are not included. Default: 2 GiB; negative is
	// no limit.
	StateBytes int64
	// HistoryAge and HistoryBytes bound how far back views and watches go. Defaults: 5 minutes and
	// 64 MiB; the first bound that is reached counts. History older than HistoryAge, by the
	// leader's monotonic clock, is dropped within another fifth of that.
	HistoryAge   time.Duration
	HistoryBytes int
}

func (l Limits) withDefaults() Limits {
	set := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	set(&l.KeyBytes, 4<<10)
	set(&l.ValueBytes, 3<<19)
	set(&l.TxnBytes, max(4<<20, l.KeyBytes+l.ValueBytes))
	set(&l.TxnOps, 1024)
	if l.StateBytes == 0 {
		l.StateBytes = 2 << 30
	}
	if l.HistoryAge <= 0 {
		l.HistoryAge = 5 * time.Minute
	}
	return l
}

// Upper bounds of the limits: the largest transaction must fit into one message between servers.
const (
	MaxTxnBytes = 8 << 20
	MaxTxnOps   = 64 << 10
)

// validate returns why a server cannot keep limits like these, which have their defaults.
func (l Limits) validate() error {
	switch {
	case l.TxnOps > MaxTxnOps:
		return fmt.Errorf("raftstore: Limits.TxnOps is %d, and may be %d at most", l.TxnOps, MaxTxnOps)
	case l.KeyBytes > MaxTxnBytes || l.ValueBytes > MaxTxnBytes || l.KeyBytes+l.ValueBytes > MaxTxnBytes:
		return fmt.Errorf("raftstore: Limits.KeyBytes is %d and ValueBytes %d, together they may be %d at most",
			l.KeyBytes, l.ValueBytes, MaxTxnBytes)
	case l.TxnBytes > MaxTxnBytes:
		return fmt.Errorf("raftstore: Limits.TxnBytes is %d, and may be %d at most", l.TxnBytes, MaxTxnBytes)
	case l.TxnBytes < l.KeyBytes+l.ValueBytes:
		return fmt.Errorf(
			"raftstore: Limits.TxnBytes is %d, which is less than a key of %d bytes and a value of %d bytes, which are allowed", l.TxnBytes, l.KeyBytes, l.ValueBytes)
	}
	return nil
}

func (l Limits) history() mvcc.Limits {
	return mvcc.Limits{HistoryBytes: l.HistoryBytes}
}

// consensus is the front's interface to the ordering of requests.
type consensus interface {
	// Propose brings the request into the log and returns the state machine's answer. The errors
	// are ErrUnavailable (certainly not proposed), ErrUnknownOutcome and ErrClosed.
	Propose(ctx context.Context, req *command.Request) (command.Outcome, error)
	// ReadRevision returns a revision that reflects everything acknowledged before the call. It
	// fails with ErrUnavailable or ErrClosed.
	ReadRevision(ctx context.Context) (uint64, error)
	// AwaitLeadership is documented at Store.AwaitLeadership. It knows of no restore.
	AwaitLeadership(ctx context.Context) (context.Context, uint64, error)
	// Close stops it, after a try to hand leadership over.
	Close() error
}

// Store is a replicated, revisioned, watchable key-value store. All methods are safe for
// concurrent use.
type Store struct {
	state     *mvcc.Store
	consensus consensus
	limits    Limits
	retryFor  time.Duration
	chunk     int              // restoreChunk; less in tests
	now       func() time.Time // the wall clock, by which keys expire
	logger    *slog.Logger
	requests  *requests

	stop    context.CancelCauseFunc // ends the store's own goroutines
	running sync.WaitGroup
	closing sync.Once
	closed  error
}

func newStore(
	state *mvcc.Store, c consensus, limits Limits, retryFor time.Duration, now func() time.Time, logger *slog.Logger,
) *Store {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	if now == nil {
		now = time.Now
	}
	if retryFor <= 0 {
		retryFor = 10 * time.Second
	}
	ctx, stop := context.WithCancelCause(context.Background())
	s := &Store{
		state: state, consensus: c, limits: limits.withDefaults(), retryFor: retryFor, chunk: restoreChunk, now: now,
		logger:   logger,
		requests: newRequests(randomOrigin()), stop: stop,
	}
	s.running.Go(func() { s.tidy(ctx) }) // ends with ctx; Close waits for it
	return s
}

func randomOrigin() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:]) | 1 // never zero
}

// Commit makes a transaction take effect, at one revision on all servers, and returns when it is on
// the disks of a quorum. It fails with a *ConflictError, ErrFenced, ErrTooLarge, ErrInvalid,
// ErrUnavailable, ErrUnknownOutcome or ErrClosed, each of which documents the outcome.
//
// A lost leader is hidden from the caller if possible: the store repeats the request under the same
// identity, which takes effect once.
//
// On a server that does not lead, the local state may reach the revision after Commit returned;
// ViewOptions.MinRevision waits for it.
func (s *Store) Commit(ctx context.Context, txn Txn) (Result, error) {
	if err := s.limits.check(&txn); err != nil {
		return Result{}, err
	}
	return s.do(ctx, &command.Request{Kind: command.KindTxn, Txn: txn})
}

// Compact drops the history up to and including the revision, on all servers. It returns when this
// server has done so: views of older revisions and watches from them fail with ErrCompacted.
func (s *Store) Compact(ctx context.Context, revision uint64) error {
	done, err := s.do(ctx, &command.Request{Kind: command.KindCompact, Revision: revision})
	if err != nil {
		return err
	}
	return s.state.WaitCompacted(ctx, done.Revision)
}

// do proposes the request until it has an answer.
func (s *Store) do(ctx context.Context, req *command.Request) (Result, error) {
	var outcome command.Outcome
	var unknown error
	for {
		ticket := s.requests.begin()
		err := s.retry(ctx, func() (err error) {
			req.ID, req.Done = ticket.id, s.requests.done()
			if outcome, err = s.consensus.Propose(ctx, req); errors.Is(err, kv.ErrUnknownOutcome) {
				unknown = err
			}
			return err
		})
		ticket.end()
		switch {
		case err != nil && unknown != nil && !errors.Is(err, kv.ErrUnknownOutcome):
			// The repetition's failure is only in the text: its error must not be taken for the
			// outcome.
			return Result{}, fmt.Errorf("%w; then: %v", unknown, err)
		case err != nil:
			return Result{}, err
		case outcome.Code != command.Spent:
			return outcome.Result()
		}
		// It was certainly not executed under this identity. Try with a new one.
		unknown = nil
	}
}

// retryPause is how long the store waits before it repeats a request that found no leader.
const retryPause = 10 * time.Millisecond

// leaderlessPatience is how long the store waits if there has been no leader for long: for a
// running election, since servers may have come back. It also slows down clients that repeat their
// requests.
const leaderlessPatience = 2 * time.Second

// retry repeats f while it fails for the lack of a leader, until the context ends or for the time
// of an election.
func (s *Store) retry(ctx context.Context, f func() error) error {
	var began time.Time
	for {
		err := f()
		if err == nil || errors.Is(err, kv.ErrOverloaded) || errors.Is(err, kv.ErrQuarantined) ||
			errors.Is(err, kv.ErrDiskFull) ||
			!errors.Is(err, kv.ErrUnavailable) && !errors.Is(err, kv.ErrUnknownOutcome) {
			return err
		}
		if began.IsZero() {
			began = time.Now()
		} else if time.Since(began) > s.patience(err) {
			return err
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
	}
}

// patience is how long a request that fails with err is repeated. Where that is set to be longer
// than an election takes, it counts from when the leader was lost.
func (s *Store) patience(err error) time.Duration {
	if leaderless, ok := errors.AsType[*kv.LeaderlessError](err); ok && leaderless.For >= s.retryFor {
		return min(s.retryFor, leaderlessPatience)
	}
	return s.retryFor
}

// Watch starts to read the event log. It fails with ErrCompacted when history does not reach back
// to opts.After, and with ErrClosed. A View and a Watch after its revision see everything, once.
func (s *Store) Watch(opts WatchOptions) (Watcher, error) { return s.state.Watch(opts) }

// Revision returns the newest revision that this server has.
func (s *Store) Revision() uint64 { return s.state.Revision() }

// Compacted returns the oldest revision that this server can still show.
func (s *Store) Compacted() uint64 { return s.state.Compacted() }

// errRestored ends the work of a leader whose state was replaced.
var errRestored = errors.New("the state was replaced by a restore: the leader's work begins anew")

// AwaitLeadership waits until this server leads and has applied everything that came before. The
// context that it returns ends, with the reason as its cause, when leadership does; it is derived
// from ctx. Transactions that carry the term take effect only while the leadership lasts.
//
// The context ends at a restore, too, although the leadership and its term go on: the leader's
// knowledge of its objects is of another state then. The next call returns at once.
func (s *Store) AwaitLeadership(ctx context.Context) (leading context.Context, term uint64, err error) {
	leading, term, err = s.consensus.AwaitLeadership(ctx)
	if err != nil {
		return nil, 0, err
	}
	leading, end := context.WithCancelCause(leading)
	restored := s.state.Restored()
	go func() { // ends with leading, at Close at the latest
		select {
		case <-restored:
			end(errRestored)
		case <-leading.Done():
		}
	}()
	return leading, term, nil
}

// Close stops the store in order: a leader hands over first. Everything that waits fails with
// ErrClosed.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.stop(ErrClosed)
		s.running.Wait()
		s.closed = s.consensus.Close()
		s.state.Close()
	})
	return s.closed
}

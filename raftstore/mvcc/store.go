package mvcc

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/tidwall/btree"

	"github.com/barque/barque/raftstore/kv"
)

// Limits bound history. Zero values mean the defaults. The callers of Compact decide how old
// history gets.
type Limits struct {
	// HistoryBytes bounds the memory that history keeps beside the newest items. Default: 64 MiB.
	HistoryBytes int
	// PinEvery is how many revisions lie between two trees that history keeps whole. Views of
	// the revisions between are computed from the next pin. Default: 1024.
	PinEvery uint64
}

func (l Limits) withDefaults() Limits {
	if l.HistoryBytes <= 0 {
		l.HistoryBytes = 64 << 20
	}
	if l.PinEvery == 0 {
		l.PinEvery = 1024
	}
	return l
}

// Store is the state of one replica.
type Store struct {
	limits Limits

	// The writer's side: the state that Apply works on, not visible yet.
	work      tree
	deadlines *btree.BTreeG[deadline]
	revision  uint64
	hash      uint64
	now       int64 // time of the newest command, in Unix milliseconds
	pending   []*entry
	compactTo uint64
	replaced  uint64 // revision of a restore that is not published yet; 0 when there is none
	staging   *Staging

	published atomic.Pointer[published]
	staged    atomic.Pointer[Staging] // the same as staging, for readers
	log       *eventLog
	advance   broadcast
	restored  broadcast
	pins      pins
}

// published is the readers' state.
type published struct {
	View
	deadlines *btree.BTreeG[deadline]
}

// New returns an empty store at revision 0.
func New(limits Limits) *Store {
	s := &Store{limits: limits.withDefaults(), work: newTree(), deadlines: newDeadlines()}
	s.log = newEventLog(s.limits)
	s.publishRoot()
	return s
}

// Compact drops the history up to and including the revision, or the newest one, at the next
// Publish. It returns which of the two. It is for the one writer.
func (s *Store) Compact(revision uint64) uint64 {
	revision = min(revision, s.revision)
	s.compactTo = max(s.compactTo, revision)
	return revision
}

// Applied returns the newest revision, published or not. It is for the one writer.
func (s *Store) Applied() uint64 { return s.revision }

// Now returns the time that came with the newest command. It is for the one writer.
func (s *Store) Now() int64 { return s.now }

// Latest returns the newest published snapshot.
func (s *Store) Latest() *View { return &s.published.Load().View }

// Revision returns the newest published revision.
func (s *Store) Revision() uint64 { return s.published.Load().revision }

// Compacted returns the oldest revision of which a view can be had.
func (s *Store) Compacted() uint64 {
	s.log.mu.RLock()
	defer s.log.mu.RUnlock()
	return s.log.compacted
}

// Restored returns a channel that is closed when the next restore is published.
func (s *Store) Restored() <-chan struct{} { return s.restored.wait() }

// Wait returns when the revision is published, or with the context's cause.
func (s *Store) Wait(ctx context.Context, revision uint64) error {
	return s.await(ctx, func() bool { return s.Revision() >= revision })
}

// WaitCompacted returns when the history up to the revision is gone, or with the context's cause.
func (s *Store) WaitCompacted(ctx context.Context, revision uint64) error {
	return s.await(ctx, func() bool { return s.Compacted() >= revision })
}

func (s *Store) await(ctx context.Context, reached func() bool) error {
	for {
		if reached() {
			return nil
		}
		changed := s.advance.wait()
		if reached() { // between the look and the wait
			return nil
		}
		select {
		case <-changed:
		case <-s.log.done:
			return s.log.cause
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// NextDeadline returns the time of the earliest expiry, 0 when nothing expires.
func (s *Store) NextDeadline() int64 {
	d, _ := s.published.Load().deadlines.Min()
	return d.at
}

// Watch subscribes to the events after a revision, in one step with finding out whether history
// still has them. It fails with ErrCompacted when not.
func (s *Store) Watch(opts kv.WatchOptions) (kv.Watcher, error) { return s.log.subscribe(opts) }

// Close ends all watchers and all waiting with ErrClosed. Views stay valid.
func (s *Store) Close() { s.log.close(kv.ErrClosed) }

// Withdraw ends all watchers and all waiting with the cause, which Withdrawn returns from then on.
// The state still follows the log; it is for its readers to ask whether it may be shown.
func (s *Store) Withdraw(cause error) { s.log.close(cause) }

// Withdrawn returns why the state may not be shown: the cause of Withdraw or Close, whichever came
// first, and nil before both.
func (s *Store) Withdrawn() error {
	select {
	case <-s.log.done:
		return s.log.cause
	default:
		return nil
	}
}

// broadcast wakes all waiters, and costs the sender nothing when there are none.
type broadcast struct {
	mu sync.Mutex
	ch chan struct{}
}

// wait returns a channel that the next send closes.
func (b *broadcast) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *broadcast) send() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}

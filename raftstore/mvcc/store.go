package mvcc

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tidwall/btree"

	"github.com/barque/barque/raftstore/kv"
)

// Limits bound history. Revisions leave it when either bound is passed; zero values mean the
// defaults.
type Limits struct {
	// HistoryAge is how long the events of a revision are kept, in milliseconds, measured on the
	// times that the commands carry. Default: 10 minutes.
	HistoryAge int64
	// HistoryBytes bounds the memory that history holds, roughly. Default: 64 MiB.
	HistoryBytes int
	// PinEvery is how many revisions lie between two trees that history keeps whole. Views of
	// the revisions between are computed from the next pin. Default: 1024.
	PinEvery uint64
}

func (l Limits) withDefaults() Limits {
	if l.HistoryAge <= 0 {
		l.HistoryAge = 10 * 60 * 1000
	}
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
	now       int64 // newest time that came with a command
	pending   []*entry
	compactTo uint64
	replaced  uint64 // revision of a restore that is not published yet; 0 when there is none
	staging   *Staging

	published atomic.Pointer[published]
	staged    atomic.Pointer[Staging] // the same as staging, for readers
	log       *eventLog
	advance   broadcast
	pins      pins
}

// published is what readers see.
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

// Apply runs a transaction against the state that is not published yet. It returns the revision
// of the transaction, or the store's revision when it changed nothing. now is in Unix
// milliseconds. It is for the one writer.
func (s *Store) Apply(txn *kv.Txn, now int64) (uint64, *kv.ConflictError) {
	s.now = max(s.now, now)
	for _, p := range txn.Require {
		current := s.work.get(p.Key)
		if (current == nil && p.ModRevision == 0) || (current != nil && current.ModRevision == p.ModRevision) {
			continue
		}
		return s.revision, &kv.ConflictError{Key: p.Key, Current: current, Revision: s.revision}
	}
	next := s.revision + 1
	var events []kv.Event
	for i := range txn.Ops {
		op := &txn.Ops[i]
		prev := s.work.get(op.Key)
		switch op.Kind {
		case kv.Put:
			events = append(events, s.put(op, prev, next, now))
		case kv.Delete:
			if prev != nil {
				events = append(events, s.remove(prev, next))
			}
		}
	}
	if len(events) == 0 {
		return s.revision, nil
	}
	s.revision = next
	s.pending = append(s.pending, newEntry(next, s.now, events))
	return next, nil
}

func (s *Store) put(op *kv.Op, prev *kv.Item, revision uint64, now int64) kv.Event {
	item := &kv.Item{Key: op.Key, Value: bytes.Clone(op.Value), CreateRevision: revision, ModRevision: revision}
	kind := kv.Created
	if prev != nil {
		kind = kv.Modified
		item.Key = prev.Key // one copy of the key for all its revisions
		item.CreateRevision = prev.CreateRevision
		s.forget(prev)
	}
	if op.TTL > 0 {
		item.Expires = now + max(op.TTL.Milliseconds(), 1)
	}
	s.keep(item)
	return kv.Event{Kind: kind, Item: *item, Prev: prev}
}

func (s *Store) remove(prev *kv.Item, revision uint64) kv.Event {
	s.work.delete(prev.Key)
	s.forget(prev)
	gone := *prev
	gone.ModRevision = revision
	return kv.Event{Kind: kv.Deleted, Item: gone, Prev: prev}
}

// keep puts the item into the tree, the hash and the order of expiry; forget takes it out of the
// latter two.
func (s *Store) keep(item *kv.Item) {
	s.work.set(item)
	s.hash += hashItem(item)
	if item.Expires != 0 {
		s.deadlines.Set(deadline{item.Expires, item.Key})
	}
}

func (s *Store) forget(item *kv.Item) {
	s.hash -= hashItem(item)
	if item.Expires != 0 {
		s.deadlines.Delete(deadline{item.Expires, item.Key})
	}
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

// Publish makes everything applied so far visible. It is for the one writer.
func (s *Store) Publish() {
	if len(s.pending) == 0 && s.compactTo == 0 && s.replaced == 0 {
		return
	}
	entries := s.pending
	s.pending = nil
	s.log.mu.Lock()
	if len(entries) > 0 || s.replaced != 0 {
		s.publishRoot()
	}
	if s.replaced != 0 {
		s.log.reset(s.replaced)
		s.pins.reset(s.replaced)
		s.replaced = 0
	}
	if len(entries) > 0 {
		s.pin(entries[len(entries)-1])
		s.log.append(entries)
	}
	s.log.compact(s.compactTo, s.now)
	s.compactTo = 0
	s.log.mu.Unlock()
	s.advance.send()
}

func (s *Store) publishRoot() {
	p := &published{View: View{tree: s.work.copy(), revision: s.revision, hash: s.hash}}
	p.deadlines = s.deadlines.IsoCopy()
	s.published.Store(p)
}

// Origin is the state that a snapshot claims to hold.
type Origin struct {
	Revision uint64
	Now      int64
	Hash     uint64
}

// Load replaces everything by the items, which are those of a snapshot. Views that readers hold stay
// as they are; watchers are told that their revisions are compacted. Nothing changes when items fails,
// or when the items do not give the hash. It is for the one writer.
func (s *Store) Load(origin Origin, items func(yield func(*kv.Item)) error) error {
	work, deadlines, hash := s.work, s.deadlines, s.hash
	s.work, s.deadlines, s.hash = newTree(), newDeadlines(), 0
	err := items(s.keep)
	if err == nil && s.hash != origin.Hash {
		err = fmt.Errorf("the items of revision %d have the hash %016x, and should have %016x",
			origin.Revision, s.hash, origin.Hash)
	}
	if err != nil {
		s.work, s.deadlines, s.hash = work, deadlines, hash
		return err
	}
	s.revision, s.now, s.pending, s.compactTo, s.replaced = origin.Revision, origin.Now, nil, 0, 0
	s.setStaging(nil)
	s.log.mu.Lock()
	s.publishRoot()
	s.log.reset(origin.Revision)
	s.pins.reset(origin.Revision)
	s.log.mu.Unlock()
	s.advance.send()
	return nil
}

// Now returns the newest time that came with a command. It is for the one writer.
func (s *Store) Now() int64 { return s.now }

// Latest returns the newest published picture.
func (s *Store) Latest() *View { return &s.published.Load().View }

// Revision returns the newest published revision.
func (s *Store) Revision() uint64 { return s.published.Load().revision }

// Compacted returns the oldest revision of which a view can be had.
func (s *Store) Compacted() uint64 {
	s.log.mu.RLock()
	defer s.log.mu.RUnlock()
	return s.log.compacted
}

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

// Expired returns the keys that are due at the time, oldest deadline first, each as the
// precondition that a delete of it must carry.
func (s *Store) Expired(now int64, limit int) []kv.Precondition {
	p := s.published.Load()
	var due []kv.Precondition
	p.deadlines.Scan(func(d deadline) bool {
		if d.at > now || len(due) == limit {
			return false
		}
		due = append(due, kv.Precondition{Key: d.key, ModRevision: p.tree.get(d.key).ModRevision})
		return true
	})
	return due
}

// NextDeadline returns the time of the earliest expiry, 0 when nothing expires.
func (s *Store) NextDeadline() int64 {
	d, _ := s.published.Load().deadlines.Min()
	return d.at
}

// Watch subscribes to the events after a revision, in one step with finding out whether history
// still has them. It fails with ErrCompacted when not.
func (s *Store) Watch(opts kv.WatchOptions) (kv.Watcher, error) { return s.log.subscribe(opts) }

// Stats describe history.
type Stats struct {
	Compacted    uint64 // history holds the revisions after this one
	HistoryBytes int
	Watchers     int
}

// Stats returns numbers for metrics and status.
func (s *Store) Stats() Stats {
	s.log.mu.RLock()
	defer s.log.mu.RUnlock()
	return Stats{Compacted: s.log.compacted, HistoryBytes: s.log.bytes, Watchers: s.log.watchers}
}

// Close ends all watchers and all waiting with ErrClosed. Views stay valid.
func (s *Store) Close() { s.log.close(kv.ErrClosed) }

// Withdraw ends all watchers and all waiting with the cause, which Withdrawn returns from then on. The
// state still follows the log; it is for its readers to ask whether it may be shown.
func (s *Store) Withdraw(cause error) { s.log.close(cause) }

// Withdrawn returns why the state may not be shown: the cause of Withdraw or Close, whichever came first,
// and nil before both.
func (s *Store) Withdrawn() error {
	select {
	case <-s.log.done:
		return s.log.cause
	default:
		return nil
	}
}

// pins are pictures of the past: those that history keeps whole, and the few computed last.
type pins struct {
	mu     sync.Mutex
	last   uint64 // revision of the newest pin; the writer's
	recent []*View
}

const recentViews = 8

func (p *pins) reset(revision uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.recent = revision, nil
}

// pin keeps the newest tree with its history entry, every now and then.
func (s *Store) pin(e *entry) {
	if e.revision-s.pins.last >= s.limits.PinEvery {
		e.root = s.Latest()
		s.pins.last = e.revision
	}
}

// At returns the picture at exactly the revision.
func (s *Store) At(revision uint64) (*View, error) {
	if latest := s.Latest(); revision == latest.revision {
		return latest, nil
	}
	s.log.mu.RLock()
	from, undo, err := s.log.undo(revision, s.Latest())
	compacted := s.log.compacted
	s.log.mu.RUnlock()
	if err != nil {
		return nil, err
	}
	// The copies of one tree are made one after the other: making one marks the original.
	s.pins.mu.Lock()
	defer s.pins.mu.Unlock()
	s.pins.recent = slices.DeleteFunc(s.pins.recent, func(v *View) bool { return v.revision < compacted })
	for _, v := range s.pins.recent {
		if v.revision == revision {
			return v, nil
		}
	}
	v := from
	if len(undo) > 0 {
		v = from.rewind(revision, undo)
	}
	s.pins.recent = append(s.pins.recent, v)
	if len(s.pins.recent) > recentViews {
		s.pins.recent = slices.Delete(s.pins.recent, 0, 1)
	}
	return v, nil
}

// rewind takes the entries, newest first, back out of a copy of the picture.
func (v *View) rewind(revision uint64, undo []*entry) *View {
	past := &View{tree: v.tree.copy(), revision: revision, hash: v.hash}
	for _, e := range undo {
		for i := len(e.events) - 1; i >= 0; i-- {
			ev := &e.events[i]
			if ev.Kind != kv.Deleted {
				past.hash -= hashItem(&ev.Item)
				past.tree.delete(ev.Item.Key)
			}
			if ev.Prev != nil {
				past.hash += hashItem(ev.Prev)
				past.tree.set(ev.Prev)
			}
		}
	}
	return past
}

// broadcast wakes everybody who waits, and costs the sender nothing when nobody does.
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

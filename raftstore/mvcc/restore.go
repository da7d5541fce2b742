package mvcc

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/barque/barque/raftstore/kv"
)

// Staging holds the items of a restore until the last of them is there. There is one restore at a
// time.
//
//	none ──Begin──▶ staging ──Stage…──▶ staging ──Commit──▶ none, the state is replaced
//	                   └──────────Abort────────────────────▶ none, the state is as it was
//
// It is part of the state, and so of its snapshots: a server that comes in the middle can go on.
//
// An item that the state has, too, takes no memory of its own: both have the same record. So a
// restore takes memory for the items that differ from the state, beside some bytes for each item.
type Staging struct {
	ID      uint64 // names the restore
	Seq     uint64 // how many chunks have come
	Sum     uint64 // of ContentHash over the items
	Bytes   uint64 // of keys and values
	Items   uint64 // how many there are
	Touched int64  // when the newest step came, by its command; Unix milliseconds

	parts [][]record // the items, in order, with whatever revisions
	room  int        // bytes that may still be added to the last part
}

// partBytes is how many bytes of items are in one part, if none of them is larger. A commit gives
// memory back part by part.
const partBytes = 512 << 10

// add puts one more item aside, which comes after all others.
func (st *Staging) add(state tree, item *kv.Item) {
	content := *item
	content.CreateRevision, content.ModRevision = 0, 0
	r := pack(&content)
	st.Sum += r.hash()
	st.Items++
	st.Bytes += uint64(len(item.Key) + len(item.Value))
	if same := state.get(item.Key); same.sameContent(r) {
		r = same
	}
	if st.room <= 0 {
		st.parts, st.room = append(st.parts, nil), partBytes
	}
	last := &st.parts[len(st.parts)-1]
	*last = append(*last, r)
	st.room -= len(r)
}

// last returns the greatest key; empty when there are no items.
func (st *Staging) last() string {
	if len(st.parts) == 0 {
		return ""
	}
	part := st.parts[len(st.parts)-1]
	return part[len(part)-1].key()
}

// Ascend calls yield with each item, until it returns false. It is for the result of FreezeStaging.
func (st *Staging) Ascend(yield func(kv.Item) bool) {
	for _, part := range st.parts {
		for _, r := range part {
			item := r.item()
			item.CreateRevision, item.ModRevision = 0, 0 // they get theirs when they are put in place
			if !yield(item) {
				return
			}
		}
	}
}

// StepError is returned when a step of a restore does not fit to the steps before.
type StepError struct{ Reason string }

func (e *StepError) Error() string { return e.Reason }

func misfit(format string, args ...any) error { return &StepError{fmt.Sprintf(format, args...)} }

// BeginRestore makes room for the items of a restore. It is for the one writer, like all steps;
// they fail with a *StepError, if nothing else is said, and then change nothing. Each may come
// twice.
func (s *Store) BeginRestore(id uint64, now int64) error {
	s.now = now
	switch {
	case id == 0:
		return misfit("a restore needs an ID")
	case s.staging == nil:
		s.setStaging(&Staging{ID: id, Touched: now})
	case s.staging.ID != id:
		return misfit("another restore is under way: wait until it ends")
	}
	return nil
}

// StageItems puts the items of one chunk aside. Chunks count from 1; the keys ascend over all of
// them. limit bounds the size of all of them, as View.Bytes counts it, with the reserve of a full
// store; 0 is no bound. It fails with a *kv.NoSpaceError when they count more.
func (s *Store) StageItems(id, seq uint64, items []kv.Item, now, limit int64) error {
	s.now = now
	st := s.staging
	switch {
	case st == nil || st.ID != id:
		return misfit("this restore is not under way any more: it was given up")
	case seq <= st.Seq: // a repetition
		return nil
	case seq != st.Seq+1:
		return misfit("chunk %d of the restore comes after chunk %d", seq, st.Seq)
	}
	last := st.last()
	for i := range items {
		if items[i].Key <= last {
			return misfit("key %q of the restore comes after key %q", items[i].Key, last)
		}
		last = items[i].Key
	}
	if full := st.checkSpace(items, limit); full != nil {
		return full
	}
	next := *st
	next.Seq, next.Touched = seq, now
	for i := range items {
		next.add(s.work, &items[i])
	}
	s.setStaging(&next)
	return nil
}

// checkSpace says why the items would be too many, if they would. Those that differ are kept beside
// the state that they are to replace, so a restore without a bound could take any server's memory.
func (st *Staging) checkSpace(items []kv.Item, limit int64) *kv.NoSpaceError {
	size := int64(st.Bytes) + kv.ItemOverhead*int64(st.Items)
	more := int64(0)
	for i := range items {
		more += int64(len(items[i].Key) + len(items[i].Value) + kv.ItemOverhead)
	}
	if limit <= 0 || size+more <= limit+limit/Reserve {
		return nil
	}
	return &kv.NoSpaceError{Size: size, Needed: more, Limit: limit}
}

// RestoreTotals are the totals that a restore must have put aside when it is committed.
type RestoreTotals struct{ Seq, Items, Sum uint64 }

// maxRestored is the highest revision that a restore may ask for.
const maxRestored = 1 << 62

// CommitRestore replaces the state by the items that were put aside, at one revision that is
// above all before, and at least atLeast. It returns that revision. An unchanged item keeps
// its revisions; all others are of the new one. History goes: watchers of older revisions end
// with ErrCompacted.
func (s *Store) CommitRestore(id uint64, want RestoreTotals, atLeast uint64, now int64) (uint64, error) {
	s.now = now
	st := s.staging
	if st == nil || st.ID != id {
		return 0, misfit("this restore is not under way any more: it was given up")
	}
	if got := (RestoreTotals{st.Seq, st.Items, st.Sum}); got != want {
		return 0,
			misfit("the restore has %d items in %d chunks with the sum %016x, and should have %d in %d with %016x",
				got.Items, got.Seq, got.Sum, want.Items, want.Seq, want.Sum)
	}
	if atLeast > maxRestored {
		return 0,
			misfit("the restore asks for revision %d, above which there would be no room for those to come", atLeast)
	}
	before := s.work
	s.revision = max(s.revision+1, atLeast)
	s.work, s.deadlines, s.hash = newTree(), newDeadlines(), 0
	// The store's own keys, such as those of removed servers, are not the backup's
	// to say.
	before.ascend(kv.ReservedPrefix, "", func(r record) bool { s.keep(r); return true })
	for i, part := range st.parts {
		st.parts[i] = nil // so that an item is there once as put aside, or once in its place
		for _, r := range part {
			key := r.key()
			if !strings.HasPrefix(key, kv.ReservedPrefix) {
				s.keep(r.restored(before.get(key), s.revision))
			}
		}
	}
	s.pending, s.compactTo = nil, 0 // the changes of the entries before are history, too
	s.replaced = s.revision
	s.setStaging(nil)
	return s.revision, nil
}

// Advance raises the revision without a change of any item, and drops history: watchers of older
// revisions end with ErrCompacted. It is for a state whose newest revisions may have been lost with
// their servers, and is no replica's then. It is for the one writer.
func (s *Store) Advance(to uint64) {
	s.revision = max(s.revision, to)
	s.pending, s.compactTo = nil, 0
	s.replaced = s.revision
}

// restored returns the record that comes to stand where prev does. r was put aside.
func (r record) restored(prev record, revision uint64) record {
	if prev.sameContent(r) {
		return prev
	}
	item := r.item()
	item.CreateRevision, item.ModRevision = revision, revision
	if prev != "" {
		item.CreateRevision = prev.createRevision()
	}
	return pack(&item)
}

// sameContent reports whether both are records of one key with equal values and times of expiry.
func (r record) sameContent(other record) bool {
	if r == "" || other == "" {
		return false
	}
	a, b := r.item(), other.item()
	return a.Key == b.Key && a.Expires == b.Expires && bytes.Equal(a.Value, b.Value)
}

// AbortRestore forgets the items that were put aside. With a seq other than 0 only if no more
// chunks have come; without it is no error when there are none.
func (s *Store) AbortRestore(id, seq uint64, now int64) error {
	s.now = now
	st := s.staging
	if st == nil || st.ID != id {
		return nil
	}
	if seq != 0 && st.Seq+1 != seq {
		return misfit("the restore goes on")
	}
	s.setStaging(nil)
	return nil
}

// Staged returns the progress of the restore that is under way, nil when none is. Any goroutine may
// call it; the numbers in the result never change.
func (s *Store) Staged() *Staging { return s.staged.Load() }

// FreezeStaging returns the restore that is under way as it is now, for good, nil when none is. It
// is for the one writer.
func (s *Store) FreezeStaging() *Staging {
	if s.staging == nil {
		return nil
	}
	frozen := *s.staging
	frozen.parts = slices.Clone(frozen.parts) // a part is only replaced
	return &frozen
}

// LoadStaged puts an item of a snapshot aside, in the order of the snapshot. It is for the one
// writer, at the end of Load, when the items of the state are there.
func (s *Store) LoadStaged(st *Staging, item *kv.Item) { st.add(s.work, item) }

// SetStaging replaces the restore that is under way by that of a snapshot. It is for the one
// writer, after Load.
func (s *Store) SetStaging(st *Staging) { s.setStaging(st) }

func (s *Store) setStaging(st *Staging) {
	s.staging = st
	s.staged.Store(st)
}

package mvcc

import (
	"fmt"
	"slices"

	"github.com/barque/barque/raftstore/kv"
)

// Origin is the state that a snapshot claims to hold.
type Origin struct {
	Revision uint64
	Now      int64 // as Store.Now gave it
	Hash     uint64
}

// Load replaces everything by the items, which are those of a snapshot, and history by undos, which
// are the steps back from there, newest first; there may be none. Views that readers hold stay as
// they are. Watchers go on when the new history has all that they have not seen, and end with
// ErrCompacted when not. Nothing changes when items or undos fails, or when their results do not
// fit together or to the origin. It is for the one writer.
func (s *Store) Load(
	origin Origin, items func(yield func(*kv.Item)) error, undos func(yield func(kv.Undo) error) error,
) error {
	work, deadlines, hash := s.work, s.deadlines, s.hash
	s.work, s.deadlines, s.hash = newTree(), newDeadlines(), 0
	var history []*entry
	err := items(func(item *kv.Item) {
		r := pack(item)
		if same := work.get(item.Key); same == r {
			r = same // which readers still hold: so equal records are in memory once
		}
		s.keep(r)
	})
	if err == nil && s.hash != origin.Hash {
		err = fmt.Errorf("the items of revision %d have the hash %016x, and should have %016x",
			origin.Revision, s.hash, origin.Hash)
	}
	if err == nil {
		history, err = s.loadHistory(origin.Revision, undos)
	}
	if err != nil {
		s.work, s.deadlines, s.hash = work, deadlines, hash
		return err
	}
	s.revision, s.now, s.pending, s.compactTo, s.replaced = origin.Revision, origin.Now, nil, 0, 0
	s.setStaging(nil)
	s.log.mu.Lock()
	s.publishRoot()
	abandoned := s.log.replace(history, origin.Revision-uint64(len(history)), origin.Revision)
	s.log.compact(0) // this server may keep less than the one that wrote the snapshot
	s.pins.reset(origin.Revision)
	s.pins.forget(s.log.compacted)
	s.log.mu.Unlock()
	s.advance.send()
	s.log.wake(abandoned)
	return nil
}

// loadHistory makes the entries of the undos, oldest first.
func (s *Store) loadHistory(revision uint64, undos func(yield func(kv.Undo) error) error) ([]*entry, error) {
	if undos == nil {
		return nil, nil
	}
	now := past{tree: s.work.freeze().thaw(), hash: s.hash}
	var entries []*entry
	err := undos(func(u kv.Undo) error {
		at := revision - uint64(len(entries))
		if u.Revision != at || at == 0 {
			return fmt.Errorf("history goes on with revision %d, and should with %d", u.Revision, at)
		}
		e := newEntry(at, u.At, nil)
		if uint64(len(entries))%s.limits.PinEvery == s.limits.PinEvery-1 {
			e.root = now.view(at)
		}
		changes, err := now.redo(u)
		if err != nil {
			return err
		}
		if e.set(changes); e.root != nil {
			// On the way back, the nodes that the new pin has and the one before it in time has not
			// are those replaced since the new one.
			e.pinned = now.tree.begin()
		}
		entries = append(entries, e)
		return nil
	})
	slices.Reverse(entries)
	return entries, err
}

// redo takes one revision back and returns the changes that it had made.
func (p *past) redo(u kv.Undo) ([]change, error) {
	if len(u.Before) == 0 {
		return nil, fmt.Errorf("revision %d changed nothing", u.Revision)
	}
	changes := make([]change, len(u.Before))
	for i := range u.Before {
		b := &u.Before[i]
		c := change{after: p.tree.get(b.Key)}
		if b.ModRevision != 0 {
			c.before = pack(b)
		}
		switch {
		case c.after == "" && c.before == "":
			return nil, fmt.Errorf("revision %d made nothing of nothing at key %q", u.Revision, b.Key)
		case c.after != "" && c.after.modRevision() != u.Revision:
			return nil,
				fmt.Errorf("key %q was changed at revision %d, and not at %d", b.Key, c.after.modRevision(), u.Revision)
		case c.before != "" && b.ModRevision >= u.Revision:
			return nil, fmt.Errorf("key %q at revision %d comes from revision %d", b.Key, u.Revision-1, b.ModRevision)
		}
		p.undo(c)
		changes[i] = c
	}
	return changes, nil
}

// History calls yield with the steps back from the newest revision, newest first, as long as they
// are in history and together take no more than maxBytes, and until yield returns false. Writing
// goes on meanwhile: the steps are those from the moment of the call of History, which is for the
// one writer.
func (s *Store) History(maxBytes int) func(yield func(kv.Undo) bool) {
	s.log.mu.RLock()
	from, bytes := len(s.log.entries), 0
	for from > 0 {
		if bytes += s.log.entries[from-1].bytes(); bytes > maxBytes {
			break
		}
		from--
	}
	entries := slices.Clone(s.log.entries[from:])
	s.log.mu.RUnlock()
	return func(yield func(kv.Undo) bool) {
		for _, e := range slices.Backward(entries) {
			u := kv.Undo{Revision: e.revision, At: e.at, Before: make([]kv.Item, len(e.changes))}
			for i := range e.changes {
				if before := e.changes[i].before; before != "" {
					u.Before[i] = before.item()
				} else {
					u.Before[i].Key = e.changes[i].key()
				}
			}
			if !yield(u) {
				return
			}
		}
	}
}

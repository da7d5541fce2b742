package mvcc

import (
	"slices"
	"strings"

	"github.com/barque/barque/raftstore/kv"
)

// Outcome is the outcome of a transaction.
type Outcome struct {
	// Revision of the transaction, or the store's revision when it changed nothing or was refused.
	Revision uint64
	// Conflict is the precondition that did not hold.
	Conflict *kv.ConflictError
	// Full is set when the transaction was refused because the store would have grown over its
	// limit.
	Full *kv.NoSpaceError
}

// Apply runs a transaction against the state that is not published yet. limit bounds the size of
// all items, as View.Bytes counts it; 0 is no bound. now is in Unix milliseconds. It is for the
// one writer.
func (s *Store) Apply(txn *kv.Txn, now, limit int64) Outcome {
	s.now = now
	for _, p := range txn.Require {
		current := s.work.get(p.Key)
		if current == "" && p.ModRevision == 0 || current != "" && current.modRevision() == p.ModRevision {
			continue
		}
		conflict := &kv.ConflictError{Key: p.Key, Revision: s.revision}
		if current != "" {
			item := current.item()
			conflict.Current = &item
		}
		return Outcome{Revision: s.revision, Conflict: conflict}
	}
	if full := s.checkSpace(txn, limit); full != nil {
		return Outcome{Revision: s.revision, Full: full}
	}
	changes := make([]change, 0, len(txn.Ops))
	for i := range txn.Ops {
		if c := s.operate(&txn.Ops[i], now); c != (change{}) {
			changes = append(changes, c)
		}
	}
	return Outcome{Revision: s.enter(changes)}
}

// Reserve is how far the store may grow over its limit by small changes of items that exist: one
// part in this many. It lets a full Kubernetes cluster be cleaned up: an object that is deleted
// there is first marked as such, and leases and conditions go on being written.
const Reserve = 16

// smallGrowth is how many bytes a transaction may grow the store by to be let into the reserve.
const smallGrowth = 16 << 10

// checkSpace says why the transaction would grow the store too far, if it would. A transaction that
// does not grow it is never refused, however full the store is.
func (s *Store) checkSpace(txn *kv.Txn, limit int64) *kv.NoSpaceError {
	// The cheap bound first: nothing but the new keys and values can make it grow.
	size := s.work.sum().bytes
	most := size
	for i := range txn.Ops {
		if op := &txn.Ops[i]; op.Kind == kv.Put {
			most += int64(len(op.Key) + len(op.Value) + kv.ItemOverhead)
		}
	}
	if limit <= 0 || most <= limit {
		return nil
	}
	if !slices.ContainsFunc(txn.Ops, func(op kv.Op) bool { return !strings.HasPrefix(op.Key, kv.ReservedPrefix) }) {
		return nil // the store's own: the members must not depend on users' data
	}
	after, creates := most, false
	for i := range txn.Ops {
		before := s.work.get(txn.Ops[i].Key)
		creates = creates || before == "" && txn.Ops[i].Kind == kv.Put
		after -= before.size()
	}
	switch grows := after - size; {
	case grows <= 0, after <= limit:
		return nil
	case !creates && grows <= smallGrowth && after <= limit+limit/Reserve:
		return nil
	}
	return &kv.NoSpaceError{Size: size, Needed: after - size, Limit: limit}
}

// operate carries out one operation of the next revision. The change is empty when it has no
// effect.
func (s *Store) operate(op *kv.Op, now int64) change {
	if op.Kind == kv.Delete {
		before := s.work.delete(op.Key)
		s.forget(before)
		return change{before: before}
	}
	item := kv.Item{Key: op.Key, Value: op.Value, CreateRevision: s.revision + 1, ModRevision: s.revision + 1}
	if op.TTL > 0 {
		item.Expires = now + max(op.TTL.Milliseconds(), 1)
	}
	if before := s.work.get(op.Key); before != "" {
		item.CreateRevision = before.createRevision()
		s.forget(before)
		c := change{before, pack(&item)}
		s.keep(c.after)
		return c
	}
	c := change{after: pack(&item)}
	s.keep(c.after)
	return c
}

// enter makes the changes the next revision, if there are any, and returns the newest one.
func (s *Store) enter(changes []change) uint64 {
	if len(changes) > 0 {
		s.revision++
		s.pending = append(s.pending, newEntry(s.revision, s.now, changes))
	}
	return s.revision
}

// Publish makes everything applied so far visible. It is for the one writer.
func (s *Store) Publish() {
	if len(s.pending) == 0 && s.compactTo == 0 && s.replaced == 0 {
		return
	}
	entries := s.pending
	s.pending = nil
	var concerned []*route
	restored := s.replaced != 0
	s.log.mu.Lock()
	if len(entries) > 0 || restored {
		s.publishRoot()
	}
	if restored {
		concerned = s.log.replace(nil, s.replaced, s.replaced)
		s.pins.reset(s.replaced)
		s.replaced = 0
	}
	if len(entries) > 0 {
		s.pin(entries[len(entries)-1])
		concerned = append(concerned, s.log.append(entries)...)
	}
	s.log.compact(s.compactTo)
	s.pins.forget(s.log.compacted)
	s.compactTo = 0
	s.log.mu.Unlock()
	s.advance.send()
	if restored {
		s.restored.send()
	}
	s.log.wake(concerned)
}

func (s *Store) publishRoot() {
	p := &published{View: View{tree: s.work.freeze(), revision: s.revision, hash: s.hash}}
	p.deadlines = s.deadlines.IsoCopy()
	s.published.Store(p)
}

// Expire deletes items that are due at the time, the oldest deadline first, at most limit of them,
// all at one revision, which it returns. It is for the one writer.
func (s *Store) Expire(due int64, limit int, now int64) uint64 {
	s.now = now
	var keys []string
	s.deadlines.Scan(func(d deadline) bool {
		if d.at > due || len(keys) >= limit {
			return false
		}
		keys = append(keys, d.key)
		return true
	})
	changes := make([]change, 0, len(keys))
	for _, key := range keys {
		before := s.work.delete(key)
		s.forget(before)
		changes = append(changes, change{before: before})
	}
	return s.enter(changes)
}

// keep puts the record into the tree, the hash and the order of expiry; forget takes it out of the
// latter two.
func (s *Store) keep(r record) {
	s.work.set(r)
	s.hash += r.hash()
	if at := r.expires(); at != 0 {
		s.deadlines.Set(deadline{at, r.key()})
	}
}

func (s *Store) forget(r record) {
	if r == "" {
		return
	}
	s.hash -= r.hash()
	if at := r.expires(); at != 0 {
		s.deadlines.Delete(deadline{at, r.key()})
	}
}

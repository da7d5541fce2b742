package check

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/kv"
)

// explain finds the write, or the expiry, that made each revision.
func (j *judge) explain() {
	byRevision, byValue := make(map[uint64]*Write), make(map[string]*Write)
	var deletes []*Write // of unknown outcome, with nothing put
	for _, w := range j.writes {
		puts := false
		w.effect = 0 // it may have been explained before
		for _, op := range w.Txn.Ops {
			if op.Kind == raftstore.Put {
				byValue[string(op.Value)], puts = w, true
			}
		}
		switch {
		case !puts && w.Outcome == Unknown:
			deletes = append(deletes, w)
		case w.Outcome == Done && (puts || j.deletedBy(w)):
			other := byRevision[w.Revision]
			switch {
			case other == nil:
				byRevision[w.Revision] = w
			case puts:
				j.violated(Once, "two writes at revision %d: %v, and %v", w.Revision, other, w)
			case w.Call < other.Call: // the later one found nothing to delete any more
				byRevision[w.Revision] = w
			}
		}
	}
	for r := uint64(1); r <= j.last; r++ {
		w := byRevision[r]
		if w != nil && j.foundNothing(w, r) {
			w = nil
			delete(byRevision, r)
		}
		if w == nil {
			w = j.unacknowledged(r, byValue, deletes)
		}
		if w == nil {
			continue
		}
		if w.effect != 0 && w.effect != r {
			j.violated(Once, "revisions %d and %d are both of the %v", w.effect, r, w)
		}
		if !j.matches(w, r) {
			j.violated(Acknowledged, "revision %d is %s and should be of the %v", r, describe(j.history[r].events), w)
		}
		w.effect = r
	}
	for _, w := range j.writes {
		if w.Outcome == Done && byRevision[w.Revision] == w && w.effect == 0 {
			j.violated(Acknowledged, "the history ends at revision %d, before the %v", j.last, w)
		}
	}
}

// deletedBy tells whether a write that only deletes made its revision. If not, there was nothing to
// delete.
func (j *judge) deletedBy(w *Write) bool {
	h := j.history[w.Revision]
	return h != nil && len(w.Txn.Ops) > 0 && j.matches(w, w.Revision) && j.allows(w, w.Revision) && !j.expires(h)
}

// foundNothing tells that a write that only deletes was acknowledged at a revision from before its
// term: another one, whose outcome is unknown, has deleted what it was to delete.
func (j *judge) foundNothing(w *Write, r uint64) bool {
	puts := slices.ContainsFunc(w.Txn.Ops, func(op raftstore.Op) bool { return op.Kind == raftstore.Put })
	of := func(o LedTerm) bool { return o.Term == w.Txn.Term }
	before := func(o LedTerm) bool { return of(o) && o.Revision < r } // a term may be told of more than once
	return !puts && slices.ContainsFunc(j.ledTerms, of) && !slices.ContainsFunc(j.ledTerms, before)
}

// expires tells whether a revision may be an expiry: all that was deleted was due, by some clock.
func (j *judge) expires(r *revision) bool {
	return len(r.events) > 0 && !slices.ContainsFunc(r.events, func(e raftstore.Event) bool {
		return e.Kind != raftstore.Deleted || e.Prev == nil || e.Prev.Expires == 0 ||
			j.opts.Clocks != nil && e.Prev.Expires > j.opts.Clocks.Latest(r.seen)
	})
}

// unacknowledged finds the write of a revision that was not acknowledged.
func (j *judge) unacknowledged(r uint64, byValue map[string]*Write, deletes []*Write) *Write {
	h := j.history[r]
	if !slices.ContainsFunc(h.events, func(e raftstore.Event) bool { return !strings.HasPrefix(e.Item.Key, kv.ReservedPrefix) }) {
		return nil // the store's own
	}
	for _, e := range h.events {
		if e.Kind == raftstore.Deleted {
			continue
		}
		w := byValue[string(e.Item.Value)]
		switch {
		case w == nil:
			j.violated(OneHistory, "no write made revision %d: %s", r, describe(h.events))
			return nil
		case w.Outcome == Done:
			j.violated(Once, "revision %d, too, is of the %v", r, w)
			return nil
		case w.Outcome != Unknown:
			j.violated(NotExecuted, "revision %d is of the %v: %s", r, w, w.Err)
			return nil
		}
		return w
	}
	if j.expires(h) {
		j.expiry(r, byValue)
		return nil
	}
	var best *Write // of those that may have been it, the one that could be it for the shortest time to come
	for _, w := range deletes {
		if w.effect != 0 || w.Call > h.seen || !j.matches(w, r) || !j.allows(w, r) {
			continue
		}
		switch {
		case best == nil, !j.fenceAllows(best, r):
			best = w
		case w.Txn.Term != 0 && (best.Txn.Term == 0 || w.Txn.Term < best.Txn.Term) && j.fenceAllows(w, r):
			best = w
		}
	}
	if best != nil {
		return best
	}
	if len(h.events) > 0 {
		j.violated(ExpiryOnTime, "no client made the deletes of revision %d, and they were not due: %s", r, describe(h.events))
	}
	return nil
}

// fenceAllows tells whether a write may have made a revision, as far as its term goes.
func (j *judge) fenceAllows(w *Write, r uint64) bool {
	return w.Txn.Term == 0 || !slices.ContainsFunc(j.ledTerms, func(o LedTerm) bool { return o.Term > w.Txn.Term && r > o.Revision })
}

// expiry checks that what expired, and was due, was given the time that was asked for, by any
// clock.
func (j *judge) expiry(r uint64, byValue map[string]*Write) {
	if j.opts.Clocks == nil {
		return
	}
	for _, e := range j.history[r].events {
		w := byValue[string(e.Prev.Value)]
		if w == nil {
			continue
		}
		for _, op := range w.Txn.Ops {
			if op.Key != e.Item.Key {
				continue
			}
			begun := j.opts.Clocks.Earliest(w.Call, max(w.Call, j.history[e.Prev.ModRevision].seen))
			if given := time.Duration(e.Prev.Expires-begun) * time.Millisecond; given < op.TTL.Truncate(time.Millisecond) {
				j.violated(ExpiryOnTime, "%s was given %v instead of %v", op.Key, given, op.TTL)
			}
		}
	}
}

// matches tells whether a revision may be the effect of the write: there is one event for each Put
// and for each Delete that found something, and no other.
func (j *judge) matches(w *Write, r uint64) bool {
	events, n := j.history[r].events, 0
	for i := range w.Txn.Ops {
		op := &w.Txn.Ops[i]
		at := slices.IndexFunc(events, func(e raftstore.Event) bool { return e.Item.Key == op.Key })
		switch {
		case at < 0 && (op.Kind == raftstore.Put || j.before(op.Key, r) != 0):
			return false
		case at < 0:
			continue
		case op.Kind == raftstore.Put && (events[at].Kind == raftstore.Deleted || string(events[at].Item.Value) != string(op.Value)):
			return false
		case op.Kind == raftstore.Delete && events[at].Kind != raftstore.Deleted:
			return false
		}
		n++
	}
	return n == len(events) && n > 0
}

// allows tells whether the write's preconditions hold before a revision.
func (j *judge) allows(w *Write, r uint64) bool {
	return !slices.ContainsFunc(w.Txn.Require, func(p raftstore.Precondition) bool { return j.before(p.Key, r) != p.ModRevision })
}

// before returns the revision of a key's last change before revision r; 0: it did not exist then.
func (j *judge) before(key string, r uint64) uint64 {
	changes := j.changes[key]
	n, _ := slices.BinarySearchFunc(changes, r, func(c change, r uint64) int { return cmp.Compare(c.revision, r) })
	if n == 0 || !changes[n-1].exists {
		return 0
	}
	return changes[n-1].revision
}

package check

import (
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/internal/history"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/kv"
)

// effect is the revision at which a write took effect, as found out; 0: it did not.
func (w *Write) effect() uint64 { return w.made.Seen }

// explain finds the delete, or the expiry, that made each revision at which nothing was put.
func (j *judge) explain() {
	acknowledged := make(map[uint64]*Write)
	var unknown []*Write
	for _, w := range j.writes {
		switch {
		case w.made.Puts(""):
		case w.Outcome == Unknown:
			unknown = append(unknown, w)
		case w.Outcome == Done && j.deletedBy(w):
			// The later one found nothing to delete any more. So did one that was asked for when
			// others had seen the delete.
			if other := acknowledged[w.Revision]; other == nil || w.Call < other.Call {
				acknowledged[w.Revision] = w
			}
		}
	}
	for _, e := range j.Between(0, j.Head()) {
		r := e.Revision
		clients := slices.DeleteFunc(slices.Clone(e.Events),
			func(ev history.Event) bool { return strings.HasPrefix(ev.Item.Key, kv.ReservedPrefix) })
		if len(clients) == 0 ||
			slices.ContainsFunc(clients, func(ev history.Event) bool { return ev.Kind != history.Deleted }) {
			continue // it is the store's own, or something was put
		}
		w := acknowledged[r]
		if w == nil || w.Call > j.seen[r] || j.foundNothing(w, r) {
			if j.expires(e) {
				j.expiry(e)
				continue
			}
			w = j.unacknowledged(e, unknown)
		}
		if w == nil {
			j.Violated(ExpiryOnTime, "no client made the deletes of revision %d, and they were not due: %s", r, e)
			continue
		}
		w.made.Seen = r
	}
}

// deletedBy reports whether a write that only deletes made its revision. If not, there was nothing
// to delete.
func (j *judge) deletedBy(w *Write) bool {
	e := j.Entry(w.Revision)
	return e != nil && j.Whole(w.made, e) && j.allows(w, w.Revision) && !j.expires(e)
}

// foundNothing reports whether a write that only deletes was acknowledged at a revision from before
// its term: another one, whose outcome is unknown, has deleted its keys.
func (j *judge) foundNothing(w *Write, r uint64) bool {
	of := func(o LedTerm) bool { return o.Term == w.Txn.Term }
	before := func(o LedTerm) bool { return of(o) && o.Revision < r } // a term may be recorded more than once
	return slices.ContainsFunc(j.ledTerms, of) && !slices.ContainsFunc(j.ledTerms, before)
}

// expires reports whether a revision may be an expiry: all that was deleted was due, by some clock.
func (j *judge) expires(e *history.Entry) bool {
	return !slices.ContainsFunc(e.Events, func(ev history.Event) bool {
		return ev.Kind != history.Deleted || ev.Prev.Expires == 0 ||
			j.opts.Clocks != nil && ev.Prev.Expires > j.opts.Clocks.Latest(j.seen[e.Revision])
	})
}

// unacknowledged finds the write of unknown outcome that made a revision: of those that may have,
// the one that could do it for the shortest time to come.
func (j *judge) unacknowledged(e *history.Entry, unknown []*Write) (best *Write) {
	r := e.Revision
	for _, w := range unknown {
		if w.effect() != 0 || w.Call > j.seen[r] || !j.Whole(w.made, e) || !j.allows(w, r) {
			continue
		}
		switch {
		case best == nil, !j.fenceAllows(best, r):
			best = w
		case w.Txn.Term != 0 && (best.Txn.Term == 0 || w.Txn.Term < best.Txn.Term) && j.fenceAllows(w, r):
			best = w
		}
	}
	return best
}

// fenceAllows reports whether a write may have made a revision, as far as its term goes.
func (j *judge) fenceAllows(w *Write, r uint64) bool {
	return w.Txn.Term == 0 ||
		!slices.ContainsFunc(j.ledTerms, func(o LedTerm) bool { return o.Term > w.Txn.Term && r > o.Revision })
}

// expiry checks that a key that expired when it was due was given the time that was asked for, by
// any clock.
func (j *judge) expiry(e *history.Entry) {
	if j.opts.Clocks == nil {
		return
	}
	for _, ev := range e.Events {
		w := j.byValue[ev.Prev.Value]
		if w == nil {
			continue
		}
		for _, op := range w.Txn.Ops {
			if op.Key != ev.Item.Key {
				continue
			}
			begun := j.opts.Clocks.Earliest(w.Call, max(w.Call, j.seen[ev.Prev.Revision]))
			if given := time.Duration(ev.Prev.Expires-begun) * time.Millisecond; given < op.TTL.Truncate(
				time.Millisecond) {
				j.Violated(ExpiryOnTime, "%s was given %v instead of %v", op.Key, given, op.TTL)
			}
		}
	}
}

// allows reports whether the write's preconditions hold before a revision.
func (j *judge) allows(w *Write, r uint64) bool {
	return !slices.ContainsFunc(w.Txn.Require,
		func(p raftstore.Precondition) bool { return j.before(p.Key, r) != p.ModRevision })
}

// before returns the revision of a key's last change before revision r; 0: it did not exist then.
func (j *judge) before(key string, r uint64) uint64 {
	item, _ := j.At(key, r-1)
	return item.Revision
}

package mvcc

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/barque/barque/raftstore/kv"
)

// route is the part of the log that watchers of one prefix want: they share it. A write looks up
// the routes that its keys belong to, adds itself to each and wakes the watchers there, and no
// others. There is no queue for a watcher anywhere: a watcher is a position in its route.
//
// A route reaches back as far as one of its watchers has asked for, and no further than history.
// Guarded by the log's lock.
type route struct {
	prefix  string
	users   int
	since   uint64 // it has all entries after this revision that are in history
	first   int64  // number of entries[0]; it falls when the route is made to reach further back
	entries []*entry
	changed broadcast
	newest  atomic.Pointer[kv.Batch] // made last: watchers that are up to date share it

	abandoned bool   // the log was replaced; entries are those before, of which this was the newest:
	seen      uint64 // revision up to which a watcher at the end of entries has seen everything
}

// concerned returns the routes that want something of the entry.
func (l *eventLog) concerned(e *entry) func(yield func(*route) bool) {
	return func(yield func(*route) bool) {
		if len(e.changes) == 1 { // no two prefixes of one key are equal
			l.routesOf(e.changes[0].key(), yield)
			return
		}
		found := make(map[*route]struct{})
		for i := range e.changes {
			l.routesOf(e.changes[i].key(), func(r *route) bool { found[r] = struct{}{}; return true })
		}
		for r := range found {
			if !yield(r) {
				return
			}
		}
	}
}

func (l *eventLog) routesOf(key string, yield func(*route) bool) {
	for _, n := range l.lengths {
		if n > len(key) {
			return
		}
		if r, ok := l.routes[key[:n]]; ok && !yield(r) {
			return
		}
	}
}

func (r *route) wants(e *entry) bool {
	return slices.ContainsFunc(e.changes, func(c change) bool { return strings.HasPrefix(c.key(), r.prefix) })
}

func (r *route) add(e *entry) { r.entries = append(r.entries, e) }

// drop forgets the entries up to the revision.
func (r *route) drop(revision uint64) {
	n := 0
	for n < len(r.entries) && r.entries[n].revision <= revision {
		n++
	}
	r.first += int64(n)
	r.entries = dropFront(r.entries, n)
	if newest := r.newest.Load(); newest != nil && newest.Revision <= revision {
		r.newest.Store(nil)
	}
}

// end is the number that the route's next entry will have.
func (r *route) end() int64 { return r.first + int64(len(r.entries)) }

// batch returns the part of the entry that the route wants.
func (r *route) batch(e *entry) kv.Batch {
	if newest := r.newest.Load(); newest != nil && newest.Revision == e.revision {
		return *newest
	}
	b := &kv.Batch{Revision: e.revision, Events: make([]kv.Event, 0, len(e.changes))}
	for i := range e.changes {
		if strings.HasPrefix(e.changes[i].key(), r.prefix) {
			b.Events = append(b.Events, e.changes[i].event(e.revision))
		}
	}
	if r.entries[len(r.entries)-1] == e {
		r.newest.Store(b)
	}
	return *b
}

// abandon ends the route. head is the newest revision that it has seen.
func (r *route) abandon(head uint64) {
	r.abandoned, r.seen = true, head
}

// join returns the route for the prefix, which reaches back to the revision. The caller holds the
// lock, and has seen to it that history does.
func (l *eventLog) join(prefix string, after uint64) *route {
	r, ok := l.routes[prefix]
	if !ok {
		r = &route{prefix: prefix, since: l.head}
		l.routes[prefix] = r
		l.countLengths()
	}
	if after < r.since {
		var earlier []*entry
		for _, e := range l.after(after) {
			if e.revision > r.since {
				break
			}
			if r.wants(e) {
				earlier = append(earlier, e)
			}
		}
		r.entries = append(earlier, r.entries...)
		r.first -= int64(len(earlier))
		r.since = after
	}
	r.users++
	l.watchers++
	return r
}

// leave gives the route back. The caller holds the lock.
func (l *eventLog) leave(r *route) {
	l.watchers--
	r.users--
	if r.users == 0 && l.routes[r.prefix] == r {
		delete(l.routes, r.prefix)
		l.countLengths()
	}
}

func (l *eventLog) countLengths() {
	l.lengths = l.lengths[:0]
	for prefix := range l.routes {
		if i, ok := slices.BinarySearch(l.lengths, len(prefix)); !ok {
			l.lengths = slices.Insert(l.lengths, i, len(prefix))
		}
	}
}

package mvcc

import (
	"slices"
	"sync"

	"github.com/barque/barque/raftstore/kv"
)

// entry is one revision in history.
type entry struct {
	revision uint64
	at       int64
	events   []kv.Event
	bytes    int
	root     *View // the whole tree as of this revision, in some entries
}

// Rough costs in memory, beside keys and values.
const (
	entryOverhead = 256 // the entry, its place in the log, and the tree nodes that it keeps alive
	eventOverhead = 256 // the event and the item before it
)

func newEntry(revision uint64, at int64, events []kv.Event) *entry {
	e := &entry{revision: revision, at: at, events: events, bytes: entryOverhead}
	for i := range events {
		e.bytes += eventOverhead + len(events[i].Item.Key) + len(events[i].Item.Value)
		if prev := events[i].Prev; prev != nil && events[i].Kind == kv.Modified {
			e.bytes += len(prev.Value)
		}
	}
	return e
}

// eventLog is history: one entry for each revision in (compacted, head], and an index of it for
// each prefix that somebody watches.
//
// Watchers of one prefix share a route. A write looks up the routes that its keys belong to, adds
// one batch to each and wakes the watchers there; nobody else notices it. The log never holds a
// queue for a watcher: a watcher is a position in its route.
type eventLog struct {
	limits Limits
	done   chan struct{} // closed by close
	cause  error         // why, once done is closed
	moved  broadcast     // sent after each append

	mu        sync.RWMutex
	entries   []*entry
	compacted uint64
	head      uint64
	bytes     int
	watchers  int
	closed    bool
	routes    map[string]*route
	lengths   []int // the distinct lengths of the prefixes in routes, ascending
}

// route is the part of the log that watchers of one prefix want. Guarded by the log's lock.
type route struct {
	prefix  string
	users   int
	base    uint64 // how many batches have left at the front
	batches []kv.Batch
	lost    bool // the log was replaced: what was missed is not known
	changed broadcast
}

func newEventLog(limits Limits) *eventLog {
	return &eventLog{limits: limits, done: make(chan struct{}), routes: make(map[string]*route)}
}

// append adds entries at the head. The caller holds the lock.
func (l *eventLog) append(entries []*entry) {
	for _, e := range entries {
		l.entries = append(l.entries, e)
		l.head = e.revision
		l.bytes += e.bytes
		l.route(e)
	}
	l.moved.send()
}

// route adds the entry's events to the routes that they belong to and wakes their watchers.
func (l *eventLog) route(e *entry) {
	for r := range l.concerned(e) {
		r.batches = append(r.batches, r.filter(e))
		r.changed.send()
	}
}

// concerned returns the routes that want something of the entry.
func (l *eventLog) concerned(e *entry) map[*route]struct{} {
	var found map[*route]struct{}
	for i := range e.events {
		key := e.events[i].Item.Key
		for _, n := range l.lengths {
			if n > len(key) {
				break
			}
			if r, ok := l.routes[key[:n]]; ok {
				if found == nil {
					found = make(map[*route]struct{})
				}
				found[r] = struct{}{}
			}
		}
	}
	return found
}

// filter returns the entry's events with the route's prefix.
func (r *route) filter(e *entry) kv.Batch {
	wanted := func(ev *kv.Event) bool {
		return len(ev.Item.Key) >= len(r.prefix) && ev.Item.Key[:len(r.prefix)] == r.prefix
	}
	all := true
	for i := range e.events {
		all = all && wanted(&e.events[i])
	}
	if all {
		return kv.Batch{Revision: e.revision, Events: e.events}
	}
	b := kv.Batch{Revision: e.revision}
	for i := range e.events {
		if wanted(&e.events[i]) {
			b.Events = append(b.Events, e.events[i])
		}
	}
	return b
}

// compact drops the entries up to the revision, and those that are too old or too many. The
// caller holds the lock.
func (l *eventLog) compact(revision uint64, now int64) {
	n := 0
	for n < len(l.entries) {
		e := l.entries[n]
		if e.revision > revision && l.bytes <= l.limits.HistoryBytes && now-e.at <= l.limits.HistoryAge {
			break
		}
		l.bytes -= e.bytes
		l.compacted = e.revision
		for r := range l.concerned(e) {
			r.drop(e.revision)
		}
		n++
	}
	l.entries = dropFront(l.entries, n)
}

func (r *route) drop(revision uint64) {
	n := 0
	for n < len(r.batches) && r.batches[n].Revision <= revision {
		n++
	}
	r.base += uint64(n)
	r.batches = dropFront(r.batches, n)
}

// dropFront removes the first n elements and lets the collector have them at once.
func dropFront[T any](s []T, n int) []T {
	clear(s[:n])
	return s[n:]
}

// reset forgets all history. The caller holds the lock.
func (l *eventLog) reset(revision uint64) {
	l.entries, l.bytes = nil, 0
	l.compacted, l.head = revision, revision
	for _, r := range l.routes {
		r.lost = true
		r.changed.send()
	}
	clear(l.routes)
	l.lengths = nil
}

// undo returns the nearest whole picture at or after the revision, and the entries that lie
// between, newest first. The caller holds the lock for reading.
func (l *eventLog) undo(revision uint64, latest *View) (*View, []*entry, error) {
	if revision > latest.revision {
		return nil, nil, kv.ErrFutureRevision
	}
	if revision < l.compacted {
		return nil, nil, kv.ErrCompacted
	}
	first := l.compacted + 1 // revision of entries[0]
	from, top := latest, latest.revision
	if revision >= first {
		if root := l.entries[revision-first].root; root != nil {
			return root, nil, nil
		}
	}
	for r := revision + 1; r < top; r++ {
		if root := l.entries[r-first].root; root != nil {
			from, top = root, r
			break
		}
	}
	undo := slices.Clone(l.entries[revision+1-first : top+1-first])
	slices.Reverse(undo)
	return from, undo, nil
}

// join returns the route for the prefix, built from the log when it is new. The caller holds the
// lock.
func (l *eventLog) join(prefix string) *route {
	r, ok := l.routes[prefix]
	if !ok {
		r = &route{prefix: prefix}
		for _, e := range l.entries {
			if b := r.filter(e); len(b.Events) > 0 {
				r.batches = append(r.batches, b)
			}
		}
		l.routes[prefix] = r
		l.countLengths()
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

func (l *eventLog) close(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed, l.cause = true, cause
		close(l.done)
	}
}

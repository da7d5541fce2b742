package mvcc

import (
	"slices"
	"sync"

	"github.com/barque/barque/raftstore/kv"
)

// change is the effect of one transaction on one key: the record before it and the one after, empty
// where there was or is none.
type change struct{ before, after record }

func (c *change) key() string {
	if c.after != "" {
		return c.after.key()
	}
	return c.before.key()
}

// event returns the change as watchers see it.
func (c *change) event(revision uint64) kv.Event {
	if c.before == "" {
		return kv.Event{Kind: kv.Created, Item: c.after.item()}
	}
	prev := c.before.item()
	if c.after != "" {
		return kv.Event{Kind: kv.Modified, Item: c.after.item(), Prev: &prev}
	}
	gone := prev
	gone.ModRevision = revision
	return kv.Event{Kind: kv.Deleted, Item: gone, Prev: &prev}
}

// entry is one revision in history.
type entry struct {
	revision uint64
	at       int64 // when it came, as its command said, in Unix milliseconds
	changes  []change
	one      [1]change // where the changes are when there is one
	root     *View     // the whole tree as of this revision, in some entries
	pinned   int       // bytes of nodes that root keeps in memory, once the next entry has a root
}

// Memory that an entry takes beside its records: itself and its places in the log and in a route,
// and each of several changes.
const (
	entryBytes  = 128 + 2*8
	changeBytes = 32
)

func newEntry(revision uint64, at int64, changes []change) *entry {
	e := &entry{revision: revision, at: at}
	e.set(changes)
	return e
}

func (e *entry) set(changes []change) {
	if e.changes = changes; len(changes) == 1 {
		e.one[0] = changes[0]
		e.changes = e.one[:]
	}
}

// bytes returns the memory that the entry keeps: itself, and the records that it replaced. The new
// records are in the tree, or were replaced by a later entry, which counts them.
func (e *entry) bytes() int {
	n := entryBytes + e.pinned
	if len(e.changes) > 1 {
		n += changeBytes * len(e.changes)
	}
	for i := range e.changes {
		n += len(e.changes[i].before)
	}
	return n
}

// eventLog is history: one entry for each revision in (compacted, head], and an index of it for
// each prefix with a watcher.
type eventLog struct {
	limits Limits
	done   chan struct{} // closed by close
	cause  error         // why, once done is closed
	moved  broadcast     // sent after each append
	counts counts

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

func newEventLog(limits Limits) *eventLog {
	return &eventLog{limits: limits, done: make(chan struct{}), routes: make(map[string]*route)}
}

// append adds entries at the head. The caller holds the lock, and wakes the watchers of the routes
// that are returned when it has given it back.
func (l *eventLog) append(entries []*entry) (concerned []*route) {
	for _, e := range entries {
		l.entries = append(l.entries, e)
		l.head = e.revision
		l.bytes += e.bytes()
		for r := range l.concerned(e) {
			r.add(e)
			if !slices.Contains(concerned, r) {
				concerned = append(concerned, r)
			}
		}
	}
	return concerned
}

// wake wakes the watchers of the routes, and the callers that wait for any revision. The caller
// does not hold the lock: thousands of watchers take a while to wake, and the first thing they do
// is to read.
func (l *eventLog) wake(concerned []*route) {
	for _, r := range concerned {
		r.changed.send()
	}
	l.moved.send()
}

// compact drops the entries up to the revision, and those that are too many. The caller holds the
// lock.
func (l *eventLog) compact(revision uint64) {
	n := 0
	for n < len(l.entries) {
		e := l.entries[n]
		if e.revision > revision && l.bytes <= l.limits.HistoryBytes {
			break
		}
		l.bytes -= e.bytes()
		l.compacted = e.revision
		for r := range l.concerned(e) {
			r.drop(e.revision)
		}
		n++
	}
	l.entries = dropFront(l.entries, n)
}

// dropFront removes the first n elements and lets the collector have them at once.
func dropFront[T any](s []T, n int) []T {
	clear(s[:n])
	return s[n:]
}

// replace takes other entries for all of history. The caller holds the lock. Watchers find out by
// themselves whether they can go on.
func (l *eventLog) replace(entries []*entry, compacted, head uint64) (abandoned []*route) {
	for _, r := range l.routes {
		r.abandon(l.head)
		abandoned = append(abandoned, r)
	}
	clear(l.routes)
	l.lengths = nil
	l.entries, l.compacted, l.head, l.bytes = entries, compacted, head, 0
	for _, e := range entries {
		l.bytes += e.bytes()
	}
	return abandoned
}

// reaches fails with a *kv.CompactedError if history does not go back to the revision. The caller
// holds the lock.
func (l *eventLog) reaches(revision uint64) error {
	if revision < l.compacted {
		return &kv.CompactedError{Revision: revision, Oldest: l.compacted}
	}
	return nil
}

// after returns the entries after the revision, which must not be below compacted. The caller holds
// the lock.
func (l *eventLog) after(revision uint64) []*entry {
	if revision >= l.head {
		return nil
	}
	return l.entries[revision-l.compacted:]
}

// undo returns the nearest whole snapshot at or after the revision, and the entries that lie
// between, newest first. The caller holds the lock for reading.
func (l *eventLog) undo(revision uint64, latest *View) (*View, []*entry, error) {
	if revision > latest.revision {
		return nil, nil, kv.ErrFutureRevision
	}
	if err := l.reaches(revision); err != nil {
		return nil, nil, err
	}
	if revision > l.compacted {
		if root := l.entries[revision-l.compacted-1].root; root != nil {
			return root, nil, nil
		}
	}
	from, between := latest, l.after(revision)
	for i, e := range between {
		if e.root != nil {
			from, between = e.root, between[:i+1]
			break
		}
	}
	between = slices.Clone(between)
	slices.Reverse(between)
	return from, between, nil
}

func (l *eventLog) close(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed, l.cause = true, cause
		close(l.done)
	}
}

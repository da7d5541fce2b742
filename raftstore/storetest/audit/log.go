package audit

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/barque/barque/raftstore/kv"
)

// Log is the order of events with all that was claimed about it. Its methods may be called from
// many goroutines.
type Log struct {
	mu     sync.Mutex
	faults []string
	more   int // faults that are not told

	acked uint64 // newest revision that any call has returned
	base  uint64 // the log is known after this revision, with the state there
	head  uint64 // and up to this one
	ahead map[uint64]*entry
	// entries after base, by revision-base-1.
	entries []*entry
	keys    map[string][]version

	txns map[string]*txn // by token
	// fleeting are the keys that a client wanted to delete, or gave a time to live.
	fleeting map[string]bool
	claims   map[uint64][]claim
	streams  []*Stream
	ops      int
	skipped  int
}

// entry is the log at one revision.
type entry struct {
	revision uint64
	events   []event
	from     string // the watcher that told it first
}

// event is what is kept of an event.
type event struct {
	kind   kv.EventKind
	key    string
	create uint64
	prev   uint64 // mod revision of the item before; 0: none
	token  string
	value  uint64 // hash of the value
}

// version is what a key became at a revision.
type version struct {
	revision, create uint64 // create 0: deleted
	value            uint64
}

// claim is checked when the log has come to its revision.
type claim struct {
	what  string
	check func(l *Log) string
}

// maxFaults bounds how many faults are kept: the first ones tell most.
const maxFaults = 50

// New returns a log that begins at a revision, with the items that the store has there.
func New(revision uint64, items []kv.Item) *Log {
	l := &Log{ahead: make(map[uint64]*entry), txns: make(map[string]*txn), claims: make(map[uint64][]claim), fleeting: make(map[string]bool)}
	l.restart(revision, items)
	return l
}

// restart makes the state at a revision the new beginning of the log.
func (l *Log) restart(revision uint64, items []kv.Item) {
	l.base, l.head, l.entries, l.keys = revision, revision, nil, make(map[string][]version)
	maps.DeleteFunc(l.ahead, func(r uint64, _ *entry) bool { return r <= revision })
	for _, i := range items {
		l.keys[i.Key] = []version{{i.ModRevision, i.CreateRevision, hash(i.Value)}}
	}
}

func (l *Log) fault(format string, args ...any) {
	if len(l.faults) >= maxFaults {
		l.more++
		return
	}
	l.faults = append(l.faults, fmt.Sprintf(format, args...))
}

// Faults returns what is wrong so far.
func (l *Log) Faults() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	faults := slices.Clone(l.faults)
	if l.more > 0 {
		faults = append(faults, fmt.Sprintf("and %d more", l.more))
	}
	return faults
}

// Head returns the newest revision up to which the log is known without a gap.
func (l *Log) Head() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head
}

// Checked returns how many calls were checked, and how many could not be because no watcher saw the
// part of the log that they speak of.
func (l *Log) Checked() (checked, skipped int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ops, l.skipped
}

// mark begins the values of clients. What begins otherwise was written by the store itself.
const mark = "#"

// Value returns a value with a token, which has no space, and something more in it.
func Value(token, more string) []byte { return []byte(mark + token + " " + more) }

// tokenOf returns the token in a value, empty when it has none.
func tokenOf(value []byte) string {
	rest, ok := bytes.CutPrefix(value, []byte(mark))
	if !ok {
		return ""
	}
	token, _, _ := bytes.Cut(rest, []byte{' '})
	return string(token)
}

func newEntry(b kv.Batch, from string) *entry {
	e := &entry{revision: b.Revision, from: from}
	for i := range b.Events {
		ev := &b.Events[i]
		kept := event{kind: ev.Kind, key: ev.Item.Key, create: ev.Item.CreateRevision, value: hash(ev.Item.Value)}
		if ev.Kind != kv.Deleted {
			kept.token = tokenOf(ev.Item.Value)
		}
		if ev.Prev != nil {
			kept.prev = ev.Prev.ModRevision
		}
		e.events = append(e.events, kept)
	}
	return e
}

// filter returns the entry as a watcher of the prefix sees it, nil when it sees nothing.
func (e *entry) filter(prefix string) *entry {
	if prefix == "" {
		return e
	}
	f := &entry{revision: e.revision, from: e.from}
	for _, ev := range e.events {
		if strings.HasPrefix(ev.key, prefix) {
			f.events = append(f.events, ev)
		}
	}
	if len(f.events) == 0 {
		return nil
	}
	return f
}

func (e *entry) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "revision %d {", e.revision)
	for i, ev := range e.events {
		if i > 0 {
			s.WriteString(", ")
		}
		fmt.Fprintf(&s, "%s %s %q (created at %d, before: %d, value %016x)",
			[...]string{"?", "created", "modified", "deleted"}[ev.kind&3], ev.key, ev.token, ev.create, ev.prev, ev.value)
	}
	return s.String() + "}"
}

// add takes in what a watcher of everything has seen.
func (l *Log) add(e *entry) {
	if e.revision <= l.head {
		if e.revision > l.base {
			l.same(l.entries[e.revision-l.base-1], e)
		}
		return
	}
	if known := l.ahead[e.revision]; known != nil {
		l.same(known, e)
		return
	}
	l.ahead[e.revision] = e
	for next := l.ahead[l.head+1]; next != nil; next = l.ahead[l.head+1] {
		delete(l.ahead, next.revision)
		l.apply(next)
	}
}

func (l *Log) same(a, b *entry) {
	if !slices.Equal(a.events, b.events) {
		l.fault("two watchers differ: %s has %s, and %s has %s", a.from, a, b.from, b)
	}
}

// apply makes the entry the newest one of the log.
func (l *Log) apply(e *entry) {
	l.head = e.revision
	l.entries = append(l.entries, e)
	for _, ev := range e.events {
		versions := l.keys[ev.key]
		var last version
		if len(versions) > 0 {
			last = versions[len(versions)-1]
		}
		exists := last.create != 0
		switch {
		case ev.kind == kv.Created && (exists || ev.create != e.revision || ev.prev != 0),
			ev.kind != kv.Created && (!exists || ev.prev != last.revision || ev.create != last.create),
			ev.kind == kv.Deleted && ev.value != last.value:
			l.fault("%s: %s was %+v before, which the event does not follow from", e, ev.key, last)
		}
		became := version{e.revision, ev.create, ev.value}
		if ev.kind == kv.Deleted {
			became.create = 0
		}
		l.keys[ev.key] = append(versions, became)
	}
	l.applied(e)
	for _, c := range l.claims[e.revision] {
		l.settle(c)
	}
	delete(l.claims, e.revision)
}

// at returns what the key was at a revision.
func (l *Log) at(key string, revision uint64) (version, bool) {
	versions := l.keys[key]
	for i := len(versions) - 1; i >= 0; i-- {
		if versions[i].revision <= revision {
			return versions[i], versions[i].create != 0
		}
	}
	return version{}, false
}

// claim has something checked now, or when the log has come to the revision.
func (l *Log) claim(revision uint64, c claim) {
	l.ops++
	switch {
	case revision < l.base:
		l.skipped++
	case revision <= l.head:
		l.settle(c)
	default:
		l.claims[revision] = append(l.claims[revision], c)
	}
}

func (l *Log) settle(c claim) {
	if wrong := c.check(l); wrong != "" {
		l.fault("%s: %s", c.what, wrong)
	}
}

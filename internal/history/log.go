package history

import (
	"cmp"
	"maps"
	"slices"
)

// Log is the history. Watchers and writes are added first. Gather makes the history from the
// watchers' events. Then answers are compared with it.
type Log struct {
	Violations
	Full    bool // events have the whole Item and its previous state; each revision has a change
	Checked int  // answers compared with the history
	Skipped int  // answers about gaps
	First   any  // the first one of them
	Spans   []Span

	watches []*Watch
	writes  map[string]*Write // by token
	entries []*Entry          // in order
	keys    map[string][]version
}

// Span is a time in which the history is known: the state at From, and each change after it up to
// To.
type Span struct{ From, To uint64 }

// version is the state of a key from a revision on.
type version struct {
	revision uint64
	item     Item
	exists   bool
}

// New returns an empty history.
func New() *Log { return &Log{writes: make(map[string]*Write), keys: make(map[string][]version)} }

// Gather makes the history from the events of the watchers of everything.
func (l *Log) Gather() {
	told := make(map[uint64]*Entry)
	var parts []*part
	for _, w := range l.watches {
		if w.wants == nil {
			parts = append(parts, w.parts...)
		}
	}
	for _, p := range parts {
		for _, e := range p.got {
			switch known := told[e.Revision]; {
			case len(e.Events) == 0: // progress
			case known == nil:
				told[e.Revision] = e
			case !slices.Equal(known.Events, e.Events):
				l.Violated(OneHistory, "two watchers differ: %s was told %s, and %s was told %s", known.by, known, e.by,
					e)
			}
		}
	}
	revisions := slices.Sorted(maps.Keys(told))
	slices.SortStableFunc(parts, func(a, b *part) int { return cmp.Compare(a.after, b.after) })
	for len(parts) > 0 {
		s, items := Span{parts[0].after, parts[0].last}, parts[0].items
		for len(parts) > 0 && parts[0].after <= s.To {
			s.To = max(s.To, parts[0].last)
			parts = parts[1:]
		}
		l.begin(s.From, items)
		at, _ := slices.BinarySearch(revisions, s.From+1)
		for ; at < len(revisions) && revisions[at] <= s.To; at++ {
			l.add(told[revisions[at]])
		}
		l.reach(s.To)
	}
}

// begin has the history go on with a state.
func (l *Log) begin(revision uint64, items []Item) {
	if l.Full && len(l.Spans) > 0 && len(items) == 0 {
		l.Violated(OneHistory, "revision %d was told to no watcher of everything", l.Head()+1)
	}
	l.Spans = append(l.Spans, Span{revision, revision})
	for key, versions := range l.keys {
		l.keys[key] = append(versions, version{revision: revision})
	}
	for _, i := range items {
		l.keys[i.Key] = append(l.keys[i.Key], version{revision, i, true})
	}
}

// reach extends the history to a revision without a change in between.
func (l *Log) reach(revision uint64) {
	s := &l.Spans[len(l.Spans)-1]
	if l.Full && s.To < revision {
		l.Violated(OneHistory, "revision %d was told to no watcher of everything", s.To+1)
	}
	s.To = revision
}

// add appends the newest entry.
func (l *Log) add(e *Entry) {
	l.reach(e.Revision - 1)
	for i := range e.Events {
		ev := &e.Events[i]
		before, existed := l.At(ev.Item.Key, e.Revision)
		if !ev.follows(e.Revision, before, existed, l.Full) {
			told := ""
			if l.Full {
				told = " as " + before.String() + ", and told as " + ev.Prev.String()
			}
			l.Violated(OneHistory, "%s, and before it was there: %v%s", ev, existed, told)
		}
		l.keys[ev.Item.Key] = append(l.keys[ev.Item.Key], version{e.Revision, ev.Item, ev.Kind != Deleted})
	}
	l.Spans[len(l.Spans)-1].To = e.Revision
	l.entries = append(l.entries, e)
	l.made(e)
}

// Head returns the newest revision that is known.
func (l *Log) Head() uint64 {
	if len(l.Spans) == 0 {
		return 0
	}
	return l.Spans[len(l.Spans)-1].To
}

// Span returns the span that includes a revision, and whether there is one.
func (l *Log) Span(revision uint64) (s Span, known bool) {
	for _, s := range slices.Backward(l.Spans) {
		if s.From <= revision && revision <= s.To {
			return s, true
		}
	}
	return s, false
}

// At returns the state of a key at a known revision.
func (l *Log) At(key string, revision uint64) (item Item, exists bool) {
	versions := l.keys[key]
	n, _ := slices.BinarySearchFunc(versions, revision, func(v version, r uint64) int {
		return cmp.Or(cmp.Compare(v.revision, r), -1) // behind those of the revision itself
	})
	if n == 0 || !versions[n-1].exists {
		return item, false
	}
	return versions[n-1].item, true
}

// Between returns the known changes after one revision, up to another, in order.
func (l *Log) Between(after, to uint64) []*Entry {
	find := func(revision uint64) int {
		n, _ := slices.BinarySearchFunc(l.entries, revision,
			func(e *Entry, r uint64) int { return cmp.Or(cmp.Compare(e.Revision, r), -1) })
		return n
	}
	return l.entries[find(after):max(find(after), find(to))]
}

// Entry returns the changes at a revision; nil when it is unknown or has none.
func (l *Log) Entry(revision uint64) *Entry {
	if all := l.Between(revision-1, revision); revision > 0 && len(all) > 0 {
		return all[0]
	}
	return nil
}

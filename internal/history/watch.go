package history

import "slices"

// Watch is one watcher. It may continue at another server.
type Watch struct {
	Name    string
	Resumes bool   // it continues where another watcher ended
	Reach   uint64 // it must have received all wanted events up to here

	log   *Log
	wants func(key string) bool // nil: everything
	parts []*part
}

// part is a stretch without missed events: all wanted events after a revision come.
type part struct {
	after    uint64
	items    []Item // at after, where the watcher has read them
	last     uint64 // all events up to here have come
	progress uint64 // the newest progress revision
	got      []*Entry
}

// Watch adds a watcher of some keys. A watcher of everything (nil) contributes to the history. It
// starts with Begin.
func (l *Log) Watch(name string, wants func(key string) bool) *Watch {
	w := &Watch{Name: name, log: l, wants: wants}
	l.watches = append(l.watches, w)
	return w
}

// Begin starts the watcher after a revision. It starts again after the answer that its next
// revision is compacted. items are the state that it has read there.
func (w *Watch) Begin(after uint64, items []Item) {
	if n := len(w.parts); n > 0 && after < w.parts[n-1].last {
		w.log.Violated(Resumable, "watcher %s began anew at revision %d, and had seen %d", w.Name, after,
			w.parts[n-1].last)
	}
	w.parts = append(w.parts, &part{after: after, items: items, last: after, progress: after})
}

// Received adds a watcher's events of a revision; without events it is progress.
func (w *Watch) Received(revision uint64, events ...Event) {
	p := w.parts[len(w.parts)-1]
	e := &Entry{revision, events, w.Name}
	switch progress := len(events) == 0; {
	case progress && revision < p.last:
		w.log.Violated(Bookmarkable, "watcher %s: progress at revision %d after %d", w.Name, revision, p.last)
	case progress:
		p.progress = revision
	case revision <= p.last:
		w.log.Violated(p.late(revision), "watcher %s: %s after revision %d", w.Name, e, p.last)
	}
	p.last, p.got = max(p.last, revision), append(p.got, e)
}

// late returns the promise that events break which come after a later revision's events.
func (p *part) late(revision uint64) string {
	switch {
	case slices.ContainsFunc(p.got, func(e *Entry) bool { return e.Revision == revision && len(e.Events) > 0 }):
		return Unique
	case revision <= p.after:
		return Resumable
	case revision <= p.progress:
		return Bookmarkable
	}
	return Ordered
}

// Watchers checks that every watcher received all wanted events, whole, where the history is known.
// For each promise it reports one missed revision of a watcher.
func (l *Log) Watchers() {
	for _, w := range l.watches {
		for _, p := range w.parts {
			at, begun, broken := p.after, false, make(map[string]bool)
			for _, e := range p.got {
				promise, to := Reliable, e.Revision-1
				if len(e.Events) == 0 {
					promise, to = Bookmarkable, e.Revision
				} else if !begun && w.Resumes {
					promise = Resumable
				}
				broken[promise] = broken[promise] || w.missing(promise, at, to)
				if len(e.Events) > 0 && w.wants != nil { // Gather has compared the others
					w.whole(e)
				}
				at, begun = max(at, e.Revision), begun || len(e.Events) > 0
			}
			w.missing(Reliable, at, w.Reach)
		}
	}
}

// missing reports the first revision after one, up to another, whose wanted events the watcher did
// not receive.
func (w *Watch) missing(promise string, after, to uint64) (found bool) {
	for _, e := range w.log.Between(after, to) {
		if wanted := w.of(e); len(wanted) > 0 {
			w.log.Violated(promise, "watcher %s was not told: %s (%s was)", w.Name, &Entry{e.Revision, wanted, ""},
				e.by)
			return true
		}
	}
	return false
}

// of returns those events of an entry that the watcher wants.
func (w *Watch) of(e *Entry) []Event {
	if w.wants == nil {
		return e.Events
	}
	return slices.DeleteFunc(slices.Clone(e.Events), func(ev Event) bool { return !w.wants(ev.Item.Key) })
}

// whole checks that an entry has all wanted events of its revision, and no others.
func (w *Watch) whole(e *Entry) {
	all := w.log.Entry(e.Revision)
	if all == nil {
		if s, known := w.log.Span(e.Revision); known && s.From < e.Revision || e.Revision > w.log.Head() {
			w.log.Violated(Reliable, "watcher %s was told %s, and no watcher of everything was", w.Name, e)
		}
		return
	}
	switch want := w.of(all); {
	case len(e.Events) != len(want):
		w.log.Violated(Atomic, "watcher %s was told %s, which is %v", w.Name, e, want)
	case !slices.Equal(e.Events, want):
		w.log.Violated(OneHistory, "watcher %s was told %s, which is %v", w.Name, e, want)
	}
}

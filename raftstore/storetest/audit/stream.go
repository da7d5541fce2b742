package audit

import (
	"fmt"
	"slices"

	"github.com/barque/barque/raftstore/kv"
)

// Stream is one watcher, which may be opened again where it ended, on another server too. Batch and
// Restart are for one goroutine.
type Stream struct {
	log    *Log
	name   string
	prefix string // "": everything
	from   uint64
	last   uint64   // everything up to here was delivered
	seen   []*entry // of a prefix, after from
}

// Watch is called when a watcher is opened after a revision. prefix "" is everything.
func (l *Log) Watch(name, prefix string, after uint64) *Stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &Stream{log: l, name: name, prefix: prefix, from: after, last: after}
	l.streams = append(l.streams, s)
	return s
}

// Last returns the revision after which the watcher goes on.
func (s *Stream) Last() uint64 {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	return s.last
}

// Restart is called when the watcher was told that history does not reach back to Last, and begins
// anew after a revision.
func (s *Stream) Restart(after uint64) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	if after < s.last {
		s.log.fault("watcher %s begins anew after revision %d, and had seen %d", s.name, after, s.last)
	}
	s.log.compare(s)
	s.from, s.last, s.seen = after, after, nil
}

// Batch is called with what the watcher has delivered.
func (s *Stream) Batch(b kv.Batch) {
	l := s.log
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case len(b.Events) == 0 && b.Revision < s.last:
		l.fault("watcher %s: progress at revision %d after %d", s.name, b.Revision, s.last)
	case len(b.Events) == 0 && s.prefix == "" && b.Revision != s.last:
		l.fault("watcher %s: progress at revision %d, when it has delivered up to %d", s.name, b.Revision, s.last)
	case len(b.Events) > 0 && b.Revision <= s.last:
		l.fault("watcher %s: revision %d after %d", s.name, b.Revision, s.last)
	case len(b.Events) > 0 && s.prefix == "" && b.Revision != s.last+1:
		l.fault("watcher %s: revision %d follows %d", s.name, b.Revision, s.last)
	}
	s.last = max(s.last, b.Revision)
	if len(b.Events) == 0 {
		return
	}
	if e := newEntry(b, s.name); s.prefix == "" {
		l.add(e)
	} else {
		s.seen = append(s.seen, e)
	}
}

// compare checks a watcher of a prefix against the log, as far as both go.
func (l *Log) compare(s *Stream) {
	if s.prefix == "" {
		return
	}
	from, to := max(s.from, l.base), min(s.last, l.head)
	var want []*entry
	for r := from + 1; r <= to; r++ {
		if e := l.entries[r-l.base-1].filter(s.prefix); e != nil {
			want = append(want, e)
		}
	}
	got := slices.DeleteFunc(slices.Clone(s.seen), func(e *entry) bool { return e.revision <= from || e.revision > to })
	for i := range max(len(want), len(got)) {
		a, b := "nothing", "nothing"
		if i < len(want) {
			a = want[i].String()
		}
		if i < len(got) {
			b = got[i].String()
		}
		if a != b {
			l.fault("watcher %s of %s between revisions %d and %d: it got %s where the log has %s", s.name, s.prefix, from, to, b, a)
			return
		}
	}
}

// Finish is called when all calls have returned and all watchers have come to the revision. It
// checks what can only be checked then.
func (l *Log) Finish(revision uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.head < revision {
		l.fault("the log is known up to revision %d of %d only", l.head, revision)
	}
	for _, s := range l.streams {
		if s.last < revision {
			l.fault("watcher %s came to revision %d of %d", s.name, s.last, revision)
		}
		l.compare(s)
	}
	for r, claims := range l.claims {
		for _, c := range claims {
			l.fault("%s: it speaks of revision %d, and the log ends at %d", c.what, r, l.head)
		}
	}
	if len(l.ahead) > 0 {
		l.fault("%d revisions after %d were seen, and what comes before them was not", len(l.ahead), l.head)
	}
}

// Summary tells in a line what was checked.
func (l *Log) Summary() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%d transactions, %d answers checked (%d could not be), log of %d revisions, %d watchers",
		len(l.txns), l.ops-l.skipped, l.skipped, l.head-l.base, len(l.streams))
}

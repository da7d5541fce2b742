package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Violation is a broken promise.
type Violation struct{ Promise, What string }

func (v Violation) String() string { return v.Promise + ": " + v.What }

// The promises.
const (
	OneHistory   = "one history on all servers"
	Linearizes   = "linearizable"
	Acknowledged = "an acknowledged write stays"
	NotExecuted  = "what was refused has no effect"
	Once         = "a write takes effect once"
	Ordered      = "watch: ordered"
	Unique       = "watch: unique"
	Atomic       = "watch: atomic"
	Reliable     = "watch: reliable"
	Resumable    = "watch: resumable"
	Bookmarkable = "watch: bookmarkable"
)

// Most bounds the violations that are kept: the first ones say most.
const Most = 40

// Violations are the violations found.
type Violations struct {
	All  []Violation
	More int // the number of violations that are not kept
}

// Violated adds a violation.
func (v *Violations) Violated(promise, format string, args ...any) {
	if len(v.All) == Most {
		v.More++
		return
	}
	v.All = append(v.All, Violation{promise, fmt.Sprintf(format, args...)})
}

// Known reports whether an answer at a revision can be judged, and counts it. what names the
// answer. A revision after the end of a Full history is a violation.
func (l *Log) Known(what any, revision uint64) bool {
	_, known := l.Span(revision)
	switch {
	case known:
		l.Checked++
	case l.Full && revision > l.Head():
		l.Violated(Acknowledged, "%v: it speaks of revision %d, and the history ends at %d", what, revision, l.Head())
	default:
		l.Skip(what)
	}
	return known
}

// Skip counts an answer that cannot be judged.
func (l *Log) Skip(what any) {
	if l.Skipped++; l.First == nil {
		l.First = what
	}
}

// Found checks the items of an answer at a revision: some keys, or all (nil).
func (l *Log) Found(what any, revision uint64, items []Item, keys []string) {
	if !l.Known(what, revision) {
		return
	}
	found := make(map[string]bool, len(items))
	for _, i := range items {
		if was, exists := l.At(i.Key, revision); !exists || was != i || found[i.Key] {
			l.Violated(OneHistory, "%v has %v, but the history has %v (there: %v)", what, i, was, exists)
		}
		found[i.Key] = true
	}
	if keys == nil {
		keys = slices.Collect(maps.Keys(l.keys))
	}
	for _, key := range keys {
		if was, exists := l.At(key, revision); exists && !found[key] {
			l.Violated(OneHistory, "%v misses %v", what, was)
		}
	}
}

// Fresh checks that an answer is not older than any answer that came before its request. A write
// must be newer.
func (l *Log) Fresh(what any, writes bool, revision, floor uint64) {
	if revision < floor || writes && revision == floor {
		l.Violated(Linearizes, "%v, after revision %d was told to somebody", what, floor)
	}
}

// NewestAnswer finds the newest revision in the answers before a time. All Adds come before the
// first Before.
type NewestAnswer struct {
	moments []moment
	sorted  bool
}

type moment struct {
	at       int64
	revision uint64
}

// Add records a revision and the time of its answer.
func (t *NewestAnswer) Add(at int64, revision uint64) {
	t.moments = append(t.moments, moment{at, revision})
}

// Before returns the newest revision of all answers before a time; 0 if there was none.
func (t *NewestAnswer) Before(at int64) (newest uint64) {
	byTime := func(a, b moment) int { return cmp.Compare(a.at, b.at) }
	if !t.sorted {
		slices.SortFunc(t.moments, byTime)
		for i := range t.moments {
			newest = max(newest, t.moments[i].revision)
			t.moments[i].revision = newest
		}
		t.sorted = true
	}
	n, _ := slices.BinarySearchFunc(t.moments, moment{at: at}, byTime)
	if n == 0 {
		return 0
	}
	return t.moments[n-1].revision
}

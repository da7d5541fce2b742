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

// Most is how many violations are kept: the first ones tell most.
const Most = 40

// Violations are those that were found.
type Violations struct {
	All  []Violation
	More int // how many were found that are not kept
}

// Violated adds a violation.
func (v *Violations) Violated(promise, format string, args ...any) {
	if len(v.All) == Most {
		v.More++
		return
	}
	v.All = append(v.All, Violation{promise, fmt.Sprintf(format, args...)})
}

// Known tells whether an answer can be judged that speaks of a revision, and counts it. what names
// the answer. One of a Full history that ends before it is a violation.
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

// Found checks what an answer says of some keys, or of all (nil), at a revision.
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

// Fresh checks that an answer at a revision is not older than what anybody was told before it was
// asked for. A write is newer than that.
func (l *Log) Fresh(what any, writes bool, revision, floor uint64) {
	if revision < floor || writes && revision == floor {
		l.Violated(Linearizes, "%v, after revision %d was told to somebody", what, floor)
	}
}

// Told is when anybody was told which revision. All is added before anything is asked for.
type Told struct {
	moments []moment
	sorted  bool
}

type moment struct {
	at       int64
	revision uint64
}

// Add notes that a revision was told at a time.
func (t *Told) Add(at int64, revision uint64) { t.moments = append(t.moments, moment{at, revision}) }

// Before returns the newest revision that was told before a time; 0 when none was.
func (t *Told) Before(at int64) (newest uint64) {
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

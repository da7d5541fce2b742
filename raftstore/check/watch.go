package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/barque/barque/raftstore"
)

func (w *Watch) String() string {
	return fmt.Sprintf("watch of client %d on server %d for %q after revision %d", w.Client, w.Server, w.Prefix, w.After)
}

// watch holds what a watcher got against what it should have got.
func (j *judge) watch(w *Watch) {
	at, progress := w.After, w.After // all up to at was delivered; progress is what it was told of that
	seen := make(map[uint64]bool)
	first := true
	for _, d := range w.deliveries {
		b := d.Batch
		switch {
		case len(b.Events) == 0:
			if b.Revision < progress {
				j.violated(Bookmarkable, "%v was told progress to %d after %d", w, b.Revision, progress)
			}
			if missed := j.between(w.Prefix, at, b.Revision); missed != 0 {
				j.violated(Bookmarkable, "%v was told progress to %d, and did not get revision %d", w, b.Revision, missed)
			}
			progress, at = max(progress, b.Revision), max(at, b.Revision)
			continue
		case seen[b.Revision]:
			j.violated(Unique, "%v got revision %d twice", w, b.Revision)
			continue
		case b.Revision <= w.After:
			j.violated(Resumable, "%v got revision %d", w, b.Revision)
		case b.Revision <= progress:
			j.violated(Bookmarkable, "%v got revision %d, after progress to %d", w, b.Revision, progress)
		case b.Revision < at:
			j.violated(Ordered, "%v got revision %d after %d", w, b.Revision, at)
		}
		if missed := j.between(w.Prefix, at, b.Revision-1); missed != 0 {
			promise := Reliable
			if first && w.Resumes {
				promise = Resumable
			}
			j.violated(promise, "%v got revision %d, and not revision %d before it", w, b.Revision, missed)
		}
		j.whole(w, b)
		seen[b.Revision], first = true, false
		at = max(at, b.Revision)
	}
	if w.MustReach != 0 {
		if missed := j.between(w.Prefix, at, w.MustReach); missed != 0 {
			j.violated(Reliable, "%v never got revision %d: %s", w, missed, w.Err)
		}
	}
}

// between returns the first revision in (after, to] that a watcher of the prefix must get; 0 if
// there is none.
func (j *judge) between(prefix string, after, to uint64) uint64 {
	for r := after + 1; r <= min(to, j.last); r++ {
		if len(wanted(j.history[r].events, prefix)) > 0 {
			return r
		}
	}
	return 0
}

func wanted(events []raftstore.Event, prefix string) []raftstore.Event {
	return slices.DeleteFunc(slices.Clone(events), func(e raftstore.Event) bool { return !strings.HasPrefix(e.Item.Key, prefix) })
}

// whole checks that a batch is all of its revision that the watcher wants, and nothing else.
func (j *judge) whole(w *Watch, b raftstore.Batch) {
	h := j.history[b.Revision]
	if h == nil {
		j.violated(Reliable, "%v got revision %d, which no server shows", w, b.Revision)
		return
	}
	want := wanted(h.events, w.Prefix)
	switch {
	case len(b.Events) != len(want):
		j.violated(Atomic, "%v got %s of revision %d, which is %s", w, describe(b.Events), b.Revision, describe(want))
	case !slices.EqualFunc(b.Events, want, sameEvent):
		j.violated(OneHistory, "%v got %s as revision %d, which is %s", w, describe(b.Events), b.Revision, describe(want))
	}
}

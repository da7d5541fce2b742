package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/barque/barque/raftstore"
)

// Violation is a broken promise.
type Violation struct {
	Promise string
	What    string
}

func (v Violation) String() string { return v.Promise + ": " + v.What }

// The promises.
const (
	OneHistory    = "one history on all servers"
	Linearizes    = "linearizable"
	Acknowledged  = "an acknowledged write stays"
	NotExecuted   = "what was refused has no effect"
	Once          = "a write takes effect once"
	Preconditions = "preconditions are checked"
	MonotonicView = "a server's revision never goes back"
	Fence         = "a fence holds"
	OneLeader     = "one leader in a term"
	ExpiryOnTime  = "nothing expires early"
	Ordered       = "watch: ordered"
	Unique        = "watch: unique"
	Atomic        = "watch: atomic"
	Reliable      = "watch: reliable"
	Resumable     = "watch: resumable"
	Bookmarkable  = "watch: bookmarkable"
)

// Options of a verdict.
type Options struct {
	// Clocks knows what the servers' wall clocks showed. Without it, expiry is not checked.
	Clocks Clocks
}

// Clocks knows what the wall clocks of all servers showed, at times of the record. Both are in Unix
// milliseconds.
type Clocks interface {
	// Earliest is the least that any clock showed between two times.
	Earliest(from, to int64) int64
	// Latest is the most that any clock had shown by a time.
	Latest(by int64) int64
}

// revision is one revision of the history.
type revision struct {
	events []raftstore.Event
	seen   int64 // when a tap showed it first
	where  string
}

// change is when a key became what it is.
type change struct {
	revision uint64
	exists   bool
}

// judge holds the record against its history.
type judge struct {
	*Record
	opts       Options
	history    map[uint64]*revision
	last       uint64
	changes    map[string][]change // of each key, in the history's order
	violations []Violation
}

func newJudge(r *Record, opts Options) *judge {
	return &judge{Record: r, opts: opts, history: make(map[uint64]*revision), changes: make(map[string][]change)}
}

func (j *judge) violated(promise, format string, args ...any) {
	if len(j.violations) < 50 {
		j.violations = append(j.violations, Violation{promise, fmt.Sprintf(format, args...)})
	}
}

// Verdict returns the promises that were broken. The store has come to rest: nothing is recorded
// any more.
func (r *Record) Verdict(opts Options) []Violation {
	j := newJudge(r, opts)
	j.gather()
	j.explain()
	j.replay()
	j.realTime()
	j.views()
	j.terms()
	for _, w := range r.watches {
		if !w.Tap {
			j.watch(w)
		}
	}
	j.ordered()
	return j.violations
}

// gather builds the history from the taps.
func (j *judge) gather() {
	for _, w := range j.watches {
		if !w.Tap {
			continue
		}
		where := fmt.Sprintf("server %d in life %d", w.Server, w.Life)
		at := w.After
		for i, d := range w.deliveries {
			b := d.Batch
			if len(b.Events) == 0 {
				continue
			}
			if i > 0 && b.Revision != at+1 || b.Revision <= at {
				j.violated(OneHistory, "%s shows revision %d after %d", where, b.Revision, at)
			}
			at = b.Revision
			known := j.history[b.Revision]
			if known == nil {
				j.history[b.Revision] = &revision{b.Events, d.At, where}
				j.last = max(j.last, b.Revision)
				continue
			}
			if !slices.EqualFunc(known.events, b.Events, sameEvent) {
				j.violated(OneHistory, "revision %d is %s on %s, and %s on %s", b.Revision, describe(known.events), known.where, describe(b.Events), where)
			}
			known.seen = min(known.seen, d.At)
		}
	}
	for r := uint64(1); r <= j.last; r++ {
		if j.history[r] == nil {
			j.violated(OneHistory, "revision %d was shown by no server", r)
			j.history[r] = &revision{}
		}
		for _, e := range j.history[r].events {
			j.changes[e.Item.Key] = append(j.changes[e.Item.Key], change{r, e.Kind != raftstore.Deleted})
		}
	}
}

func sameEvent(a, b raftstore.Event) bool {
	return a.Kind == b.Kind && sameItem(&a.Item, &b.Item) &&
		(a.Prev == nil) == (b.Prev == nil) && (a.Prev == nil || sameItem(a.Prev, b.Prev))
}

func sameItem(a, b *raftstore.Item) bool {
	return a.Key == b.Key && string(a.Value) == string(b.Value) && a.CreateRevision == b.CreateRevision &&
		a.ModRevision == b.ModRevision && a.Expires == b.Expires
}

func describe(events []raftstore.Event) string {
	text := "["
	for _, e := range events {
		text += fmt.Sprintf(" %s %q=%q@%d", [...]string{"?", "created", "modified", "deleted"}[e.Kind], e.Item.Key, e.Item.Value, e.Item.ModRevision)
	}
	return text + " ]"
}

func (w *Write) String() string {
	text := fmt.Sprintf("write of client %d by server %d (%v to %v, %s", w.Client, w.Server, time.Duration(w.Call), time.Duration(w.Return), w.Outcome)
	if w.Revision != 0 {
		text += fmt.Sprintf(" at revision %d", w.Revision)
	}
	if w.Txn.Term != 0 {
		text += fmt.Sprintf(", fenced to term %d", w.Txn.Term)
	}
	text += ")"
	for _, op := range w.Txn.Ops {
		text += fmt.Sprintf(" %s=%s", op.Key, op.Value)
	}
	return text
}

// replay runs through the history with a map of keys, and checks what was told of each revision.
func (j *judge) replay() {
	writes, reads := make(map[uint64][]*Write), make(map[uint64][]*Read)
	for _, w := range j.writes {
		switch {
		case w.effect != 0:
			writes[w.effect] = append(writes[w.effect], w)
		case w.Outcome == Conflicted || w.Outcome == Done:
			writes[w.Revision] = append(writes[w.Revision], w)
		}
	}
	for _, r := range j.reads {
		if r.Revision > j.last {
			j.violated(OneHistory, "server %d showed revision %d, and the history ends at %d", r.Server, r.Revision, j.last)
		}
		reads[r.Revision] = append(reads[r.Revision], r)
	}
	state := make(map[string]raftstore.Item)
	for r := uint64(0); r <= j.last; r++ {
		for _, w := range writes[r] {
			if w.effect == r && r > 0 {
				j.preconditions(w, state, r-1)
			}
		}
		if r > 0 {
			j.step(state, r)
		}
		for _, w := range writes[r] {
			if w.effect == 0 {
				j.withoutEffect(w, state, r)
			}
		}
		for _, read := range reads[r] {
			j.content(read, state)
		}
	}
}

func (j *judge) preconditions(w *Write, state map[string]raftstore.Item, r uint64) {
	for _, p := range w.Txn.Require {
		if item := state[p.Key]; item.ModRevision != p.ModRevision {
			j.violated(Preconditions, "%s was of revision %d at revision %d; %d was demanded by the %v", p.Key, item.ModRevision, r, p.ModRevision, w)
		}
	}
}

// withoutEffect checks a write that was told that it changed nothing.
func (j *judge) withoutEffect(w *Write, state map[string]raftstore.Item, r uint64) {
	if w.Outcome == Conflicted {
		item, exists := state[w.Conflict.Key]
		current := w.Conflict.Current
		if exists != (current != nil) || exists && !sameItem(&item, current) {
			j.violated(Preconditions, "at revision %d %s is %+v; %+v was told to the %v", r, w.Conflict.Key, item, current, w)
		}
		for _, p := range w.Txn.Require {
			if p.Key == w.Conflict.Key && item.ModRevision == p.ModRevision {
				j.violated(Preconditions, "%s was of revision %d at revision %d, as demanded by the %v", p.Key, p.ModRevision, r, w)
			}
		}
		return
	}
	for _, op := range w.Txn.Ops {
		if _, exists := state[op.Key]; exists && op.Kind == raftstore.Delete {
			j.violated(Acknowledged, "%s exists at revision %d, after the %v", op.Key, r, w)
		}
	}
}

// step applies a revision to the state.
func (j *judge) step(state map[string]raftstore.Item, r uint64) {
	for _, e := range j.history[r].events {
		before, existed := state[e.Item.Key]
		fits := e.Item.ModRevision == r && existed == (e.Prev != nil) && (!existed || sameItem(&before, e.Prev))
		switch e.Kind {
		case raftstore.Created:
			fits = fits && !existed && e.Item.CreateRevision == r
		case raftstore.Modified, raftstore.Deleted:
			fits = fits && existed && e.Item.CreateRevision == before.CreateRevision
		}
		if !fits {
			j.violated(OneHistory, "revision %d is %s, and before it the key was %+v", r, describe([]raftstore.Event{e}), before)
		}
		if state[e.Item.Key] = e.Item; e.Kind == raftstore.Deleted {
			delete(state, e.Item.Key)
		}
	}
}

func (j *judge) content(read *Read, state map[string]raftstore.Item) {
	same := len(read.Items) == len(state)
	for i := range read.Items {
		item, ok := state[read.Items[i].Key]
		same = same && ok && sameItem(&item, &read.Items[i])
	}
	if !same {
		j.violated(OneHistory, "server %d showed %d items at revision %d, which are not the %d that it has", read.Server, len(read.Items), read.Revision, len(state))
	}
}

// point is an operation with its place in the history.
type point struct {
	call, end int64
	revision  uint64
	writes    bool
	what      fmt.Stringer
}

// realTime checks that what began after something else had ended is not before it in the history.
func (j *judge) realTime() {
	points := j.points()
	byEnd := slices.SortedFunc(slices.Values(points), func(a, b point) int { return cmp.Compare(a.end, b.end) })
	slices.SortFunc(points, func(a, b point) int { return cmp.Compare(a.call, b.call) })
	next, newest := 0, point{}
	for _, p := range points {
		for ; next < len(byEnd) && byEnd[next].end < p.call; next++ {
			if byEnd[next].revision > newest.revision {
				newest = byEnd[next]
			}
		}
		if p.revision < newest.revision || p.writes && p.revision == newest.revision {
			j.violated(Linearizes, "%v, at revision %d, began after the end of %v, at revision %d", p.what, p.revision, newest.what, newest.revision)
		}
	}
}

func (j *judge) points() []point {
	var points []point
	for _, w := range j.writes {
		p := point{w.Call, w.Return, w.effect, true, w}
		switch {
		case w.effect != 0 && w.Outcome == Unknown: // it is known to all when the first server shows it
			p.end = max(w.Call, j.history[w.effect].seen)
		case w.effect != 0:
		case w.Outcome == Done, w.Outcome == Conflicted:
			p.revision, p.writes = w.Revision, false
		default:
			continue
		}
		points = append(points, p)
	}
	for _, r := range j.reads {
		if r.Kind == Linearizable {
			points = append(points, point{r.Call, r.Return, r.Revision, false, r})
		}
	}
	return points
}

func (r *Read) String() string {
	return fmt.Sprintf("read of client %d by server %d (%v to %v)", r.Client, r.Server, time.Duration(r.Call), time.Duration(r.Return))
}

// views checks what was asked of reads, and that no server goes back.
func (j *judge) views() {
	lives := make(map[[2]int][]*Read)
	for _, r := range j.reads {
		switch {
		case r.Kind == AtLeast && r.Revision < r.Asked, r.Kind == At && r.Revision != r.Asked:
			j.violated(MonotonicView, "%v got revision %d and had asked for %d", r, r.Revision, r.Asked)
		case r.Kind != At:
			lives[[2]int{r.Server, r.Life}] = append(lives[[2]int{r.Server, r.Life}], r)
		}
	}
	for _, reads := range lives {
		byEnd := slices.SortedFunc(slices.Values(reads), func(a, b *Read) int { return cmp.Compare(a.Return, b.Return) })
		slices.SortFunc(reads, func(a, b *Read) int { return cmp.Compare(a.Call, b.Call) })
		next, newest := 0, uint64(0)
		for _, r := range reads {
			for ; next < len(byEnd) && byEnd[next].Return < r.Call; next++ {
				newest = max(newest, byEnd[next].Revision)
			}
			if r.Revision < newest {
				j.violated(MonotonicView, "%v got revision %d, after another got %d there", r, r.Revision, newest)
			}
		}
	}
}

// terms checks leaders and fences.
func (j *judge) terms() {
	byTerm := make(map[uint64]LedTerm)
	for _, o := range j.ledTerms {
		if other, ok := byTerm[o.Term]; ok && (other.Server != o.Server || other.Life != o.Life) {
			j.violated(OneLeader, "servers %d and %d both lead in term %d", other.Server, o.Server, o.Term)
		} else if !ok || o.Revision < other.Revision {
			byTerm[o.Term] = o
		}
	}
	for _, w := range j.writes {
		if w.Txn.Term == 0 || w.effect == 0 {
			continue
		}
		for _, o := range byTerm {
			if o.Term > w.Txn.Term && w.effect > o.Revision {
				j.violated(Fence, "revision %d is of the %v, and the leader of term %d began at revision %d", w.effect, w, o.Term, o.Revision)
			}
			if o.Term == w.Txn.Term && w.effect <= o.Revision {
				j.violated(Fence, "revision %d is of the %v, whose term began at revision %d", w.effect, w, o.Revision)
			}
		}
	}
}

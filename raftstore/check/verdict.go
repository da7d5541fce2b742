package check

import (
	"fmt"
	"strings"
	"time"

	"github.com/barque/barque/internal/history"
	"github.com/barque/barque/raftstore"
)

// The promises of a store beside those of package history.
const (
	Preconditions = "preconditions are checked"
	MonotonicView = "a server's revision never goes back"
	Fence         = "a fence holds"
	OneLeader     = "one leader in a term"
	ExpiryOnTime  = "nothing expires early"
)

// Options of a verdict.
type Options struct {
	// Clocks has the times of the servers' wall clocks. Without it, expiry is not checked.
	Clocks Clocks
	// HistoryOnly leaves out the search for an order, which is for some thousand operations.
	HistoryOnly bool
}

// Clocks has the times that the wall clocks of all servers showed, at times of the record. Both are
// in Unix milliseconds.
type Clocks interface {
	// Earliest is the least that any clock showed between two times.
	Earliest(from, to int64) int64
	// Latest is the most that any clock had shown by a time.
	Latest(by int64) int64
}

// judge holds the record against its history.
type judge struct {
	*Record
	*history.Log
	opts    Options
	seen    map[uint64]int64  // when a tap showed a revision first
	byValue map[string]*Write // that puts it
	// fleeting are the keys that a client wanted to delete, or gave a time to live.
	fleeting map[string]bool
}

// Verdict returns the promises that were broken. The store has come to rest: nothing is recorded
// any more.
func (r *Record) Verdict(opts Options) []history.Violation {
	j := newJudge(r, opts)
	j.answers()
	j.realTime()
	j.views()
	j.terms()
	j.Watchers()
	if !opts.HistoryOnly {
		j.ordered()
	}
	r.checked, r.skipped = j.Checked, j.Skipped
	return j.All
}

// newJudge builds the history from the taps, and finds the cause of each revision.
func newJudge(r *Record, opts Options) *judge {
	j := &judge{Record: r, Log: history.New(), opts: opts, seen: make(map[uint64]int64),
		byValue: make(map[string]*Write), fleeting: make(map[string]bool)}
	j.Full = true
	for _, w := range j.writes {
		w.made = &history.Write{What: w, Never: w.Outcome != Done && w.Outcome != Unknown}
		for _, op := range w.Txn.Ops {
			w.made.Ops = append(w.made.Ops,
				history.Op{Key: op.Key, Value: string(op.Value), Delete: op.Kind == raftstore.Delete})
			if op.Kind == raftstore.Put {
				j.byValue[string(op.Value)] = w
			}
			if op.Kind == raftstore.Delete || op.TTL > 0 {
				j.fleeting[op.Key] = true
			}
		}
		j.Log.Write(w.made)
	}
	j.watch(&r.first)
	for _, w := range j.watches {
		j.watch(w)
	}
	j.Gather()
	j.explain()
	return j
}

// watch takes in a watcher's batches.
func (j *judge) watch(w *Watch) {
	after, wants := w.After, func(key string) bool { return strings.HasPrefix(key, w.Prefix) }
	if w.Tap {
		wants = nil
		if after == 0 && len(w.deliveries) > 0 { // it began with the newest revision
			after = w.deliveries[0].Revision - 1
		}
	}
	into := j.Log.Watch(w.String(), wants)
	into.Resumes, into.Reach = w.Resumes, w.MustReach
	into.Begin(after, j.values.items(w.Items))
	for _, d := range w.deliveries {
		into.Received(d.Revision, d.Events...)
		if at, ok := j.seen[d.Revision]; w.Tap && (!ok || d.At < at) {
			j.seen[d.Revision] = d.At
		}
	}
}

func (w *Watch) String() string {
	if w.Tap {
		return fmt.Sprintf("of everything on server %d in life %d", w.Server, w.Life)
	}
	return fmt.Sprintf("of client %d on server %d for %q after revision %d (%s)", w.Client, w.Server, w.Prefix, w.After,
		w.Err)
}

func (w *Write) String() string {
	t := fmt.Sprintf("write of client %d by server %d (%v to %v, %s", w.Client, w.Server, time.Duration(w.Call),
		time.Duration(w.Return), w.Outcome)
	if w.Revision != 0 {
		t += fmt.Sprintf(" at revision %d", w.Revision)
	}
	if w.Txn.Term != 0 {
		t += fmt.Sprintf(", fenced to term %d", w.Txn.Term)
	}
	t += ")"
	for _, op := range w.Txn.Ops {
		t += fmt.Sprintf(" %s=%s", op.Key, op.Value)
	}
	return t
}

// answers checks the revisions in clients' answers.
func (j *judge) answers() {
	for _, w := range j.writes {
		if w.effect() != 0 {
			for _, p := range w.Txn.Require {
				if was := j.before(p.Key, w.effect()); was != p.ModRevision {
					j.Violated(Preconditions, "%s was of revision %d before revision %d; %d was demanded by the %v",
						p.Key, was, w.effect(), p.ModRevision, w)
				}
			}
		}
		switch {
		case w.Outcome == Conflicted:
			j.conflict(w)
		case w.Outcome == Done: // a write that only deletes may have found nothing
			j.Acknowledged(w.made, w.Revision)
			j.survives(w)
		}
	}
	for _, r := range j.reads {
		j.Found(r, r.Revision, r.Items, r.Keys)
	}
}

// conflict checks a write that was answered with a failed precondition.
func (j *judge) conflict(w *Write) {
	if !j.Known(w, w.Revision) {
		return
	}
	key, told := w.Conflict.Key, j.values.item(w.Conflict.Current)
	item, exists := j.At(key, w.Revision)
	if exists != (w.Conflict.Current != nil) || item != told {
		j.Violated(Preconditions, "at revision %d %s is %v; %v was told to the %v", w.Revision, key, item, told, w)
	}
	for _, p := range w.Txn.Require {
		if p.Key == key && item.Revision == p.ModRevision {
			j.Violated(Preconditions, "%s was of revision %d at revision %d, as demanded by the %v", key, p.ModRevision,
				w.Revision, w)
		}
	}
}

// survives checks that a write which was acknowledged when no tap saw it shows in the state with
// which the history goes on, unless something later has changed that.
func (j *judge) survives(w *Write) {
	for _, s := range j.Spans {
		if s.From <= w.Revision && w.Revision <= s.To {
			return
		}
		if w.Revision > s.From {
			continue
		}
		for _, op := range w.Txn.Ops {
			item, exists := j.At(op.Key, s.From)
			if op.Kind == raftstore.Put && (!exists && !j.fleeting[op.Key] || exists && item.Revision < w.Revision) {
				j.Violated(history.Acknowledged, "at revision %d %q is %v (there: %v), after the %v", s.From, op.Key,
					item, exists, w)
			}
		}
		return
	}
}

// point is an operation with its place in the history.
type point struct {
	call, end int64
	revision  uint64
	writes    bool
	what      fmt.Stringer
}

// realTime checks that an operation that began after another had ended is not before it in
// the history.
func (j *judge) realTime() {
	var told history.NewestAnswer
	told.Add(-1, j.first.After)
	points := j.points()
	for _, p := range points {
		told.Add(p.end, p.revision)
	}
	for _, r := range j.reads {
		told.Add(r.Return, r.Revision)
	}
	for _, p := range points {
		j.Fresh(p.what, p.writes, p.revision, told.Before(p.call))
	}
}

func (j *judge) points() []point {
	var points []point
	for _, w := range j.writes {
		p := point{w.Call, w.Return, w.effect(), true, w}
		switch {
		case w.effect() != 0 && w.Outcome == Unknown: // it is known to all when the first server shows it
			p.end = max(w.Call, j.seen[w.effect()])
		case w.effect() != 0:
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
	return fmt.Sprintf("read of client %d by server %d (%v to %v)", r.Client, r.Server, time.Duration(r.Call),
		time.Duration(r.Return))
}

// views checks the demands of reads, and that no server goes back.
func (j *judge) views() {
	lives := make(map[[2]int]*history.NewestAnswer)
	for _, r := range j.reads {
		if r.Kind == AtLeast && r.Revision < r.Asked || r.Kind == At && r.Revision != r.Asked {
			j.Violated(MonotonicView, "%v got revision %d and had asked for %d", r, r.Revision, r.Asked)
		}
		life := [2]int{r.Server, r.Life}
		if lives[life] == nil {
			lives[life] = new(history.NewestAnswer)
		}
		if r.Kind != At {
			lives[life].Add(r.Return, r.Revision)
		}
	}
	for _, r := range j.reads {
		if newest := lives[[2]int{r.Server, r.Life}].Before(r.Call); r.Kind != At && r.Revision < newest {
			j.Violated(MonotonicView, "%v got revision %d, after another got %d there", r, r.Revision, newest)
		}
	}
}

// terms checks leaders and fences.
func (j *judge) terms() {
	byTerm := make(map[uint64]LedTerm)
	for _, o := range j.ledTerms {
		if other, ok := byTerm[o.Term]; ok && (other.Server != o.Server || other.Life != o.Life) {
			j.Violated(OneLeader, "servers %d and %d both lead in term %d", other.Server, o.Server, o.Term)
		} else if !ok || o.Revision < other.Revision {
			byTerm[o.Term] = o
		}
	}
	for _, w := range j.writes {
		if w.Txn.Term == 0 || w.effect() == 0 {
			continue
		}
		for _, o := range byTerm {
			if o.Term > w.Txn.Term && w.effect() > o.Revision {
				j.Violated(Fence, "revision %d is of the %v, and the leader of term %d began at revision %d",
					w.effect(), w, o.Term, o.Revision)
			}
			if o.Term == w.Txn.Term && w.effect() <= o.Revision {
				j.Violated(Fence, "revision %d is of the %v, whose term began at revision %d", w.effect(), w,
					o.Revision)
			}
		}
	}
}

// Package check records the answers that clients of a store get, and finds those that contradict
// the promises of the store: that it is linearizable, that acknowledged writes stay, and its
// promises about revisions, watches, fences and expiry.
//
// The record holds taps: watches of everything on each server, which show every revision as it
// comes about. The verdict builds the one history of the store from them, on which all servers must
// agree, and holds every answer against it. Each Put carries a value of its own, so that each
// change finds the write that made it. Package history has the judgements that hold at every level;
// terms, fences, expiry, views and unacknowledged deletes are judged here. Beside that, package
// linear looks for an order by itself, without revisions.
//
// It is for tests, and does not care how the store runs: simulated or in processes of its own.
package check

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/barque/barque/internal/history"
	"github.com/barque/barque/raftstore"
)

// Outcome is a client's knowledge about its write.
type Outcome int

const (
	Done       Outcome = iota // it took effect, at Revision
	Conflicted                // a precondition did not hold, at Revision
	Fenced                    // its term was over
	Refused                   // it was certainly not executed
	Unknown                   // it may have taken effect, once
)

func (o Outcome) String() string {
	return [...]string{"done", "conflict", "fenced", "refused", "unknown"}[o]
}

// Write is one transaction. The times are nanoseconds since the record began.
type Write struct {
	Client, Server int
	Call, Return   int64
	Txn            raftstore.Txn
	Outcome        Outcome
	Revision       uint64                   // of Done and Conflicted
	Conflict       *raftstore.ConflictError // of Conflicted
	Err            string                   // of the others

	made *history.Write // as the history has it
}

// ReadKind is the kind of a read.
type ReadKind int

const (
	Linearizable ReadKind = iota
	Stale
	AtLeast // ViewOptions.MinRevision
	At      // ViewOptions.Revision
)

// Read is one view that a client got.
type Read struct {
	Client, Server int
	Life           int // of the server: counts its starts
	Call, Return   int64
	Kind           ReadKind
	Asked          uint64 // of AtLeast and At
	Revision       uint64
	Keys           []string       // that were asked for; nil: all
	Items          []history.Item // all that there are of them
}

// Delivery is one batch of a watch.
type Delivery struct {
	At       int64
	Revision uint64
	Events   []history.Event
}

// Watch is one watcher, from its start to its end.
type Watch struct {
	Client, Server, Life int
	Prefix               string
	After                uint64 // the revision that was asked for; 0 only where Tap is set
	Resumes              bool   // it goes on where the client's last one ended
	Tap                  bool   // of everything; the taps make the history
	MustReach            uint64 // the revision that it had to come to; 0: none
	Err                  string // why it ended
	// Items are all that there was at After, of a tap that read them there: the history may begin
	// with them, or go on behind a part that no tap saw.
	Items []raftstore.Item

	mu         sync.Mutex
	deliveries []Delivery
}

// LedTerm is one term in which a server leads, as AwaitLeadership returned it.
type LedTerm struct {
	Server, Life int
	Term         uint64
	Revision     uint64 // of the server when AwaitLeadership returned
	At           int64
}

// Record is a record of events. All methods are safe for concurrent use.
type Record struct {
	start  time.Time
	values Values
	first  Watch // a tap that has seen nothing but the beginning

	mu       sync.Mutex
	writes   []*Write
	reads    []*Read
	watches  []*Watch
	ledTerms []LedTerm
	notes    []Note
	checked  int // answers, by the verdict
	skipped  int // about parts that no tap saw
}

// Note is for people who read the record: a fault, mostly.
type Note struct {
	At   int64
	Text string
}

// NewRecord returns an empty record that begins now, of a store in which nothing has happened.
func NewRecord() *Record { return NewRecordAt(0, nil, whole) }

// NewRecordAt returns an empty record that begins now, of a store with some items.
func NewRecordAt(revision uint64, items []raftstore.Item, values Values) *Record {
	return &Record{start: time.Now(), values: values, first: Watch{Tap: true, After: revision, Items: items}}
}

// Follow adds the writes of unknown outcome that an earlier record has and its verdict has not
// found: they may still take effect.
func (r *Record) Follow(earlier *Record) {
	for _, w := range earlier.writes {
		if w.Outcome == Unknown && w.effect() == 0 && w.Call >= 0 {
			again := *w
			again.Call, again.Return = -1, -1
			r.writes = append(r.writes, &again)
		}
	}
}

// Now returns the time of the record.
func (r *Record) Now() int64 { return int64(time.Since(r.start)) }

// Note adds a note.
func (r *Record) Note(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, Note{r.Now(), text})
}

// Write adds a write that has returned now. Its Outcome follows from err.
func (r *Record) Write(w Write, result raftstore.Result, err error) {
	w.Return = r.Now()
	w.Outcome, w.Revision = Done, result.Revision
	var conflict *raftstore.ConflictError
	switch {
	case err == nil:
	case errors.As(err, &conflict):
		w.Outcome, w.Revision, w.Conflict = Conflicted, conflict.Revision, conflict
	case errors.Is(err, raftstore.ErrFenced):
		w.Outcome = Fenced
	case errors.Is(err, raftstore.ErrUnknownOutcome):
		w.Outcome = Unknown
	default:
		w.Outcome = Refused
	}
	if err != nil {
		w.Err = err.Error()
	}
	w.Txn.Ops = slices.Clone(w.Txn.Ops)
	for i := range w.Txn.Ops {
		if op := &w.Txn.Ops[i]; op.Kind == raftstore.Put {
			op.Value = []byte(r.values(op.Value))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes = append(r.writes, &w)
}

// Read adds a read that has returned now.
func (r *Record) Read(read Read, v raftstore.View) {
	read.Return, read.Revision = r.Now(), v.Revision()
	v.Ascend("", "", func(item raftstore.Item) bool {
		read.Items = append(read.Items, r.values.item(&item))
		return true
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads = append(r.reads, &read)
}

// Watch adds a watch that begins now.
func (r *Record) Watch(w *Watch) *Watch {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watches = append(r.watches, w)
	return w
}

// Deliver adds a batch to a watch.
func (r *Record) Deliver(w *Watch, b raftstore.Batch) {
	d := Delivery{r.Now(), b.Revision, r.values.events(b.Events)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deliveries = append(w.deliveries, d)
}

// LedTerm adds a term in which a server leads.
func (r *Record) LedTerm(o LedTerm) {
	o.At = r.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ledTerms = append(r.ledTerms, o)
}

// Terms returns how many terms had a leader.
func (r *Record) Terms() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	terms := make(map[uint64]bool)
	for _, o := range r.ledTerms {
		terms[o.Term] = true
	}
	return len(terms)
}

// Counts says how much happened.
type Counts struct {
	Writes, Unknown, Reads, Watches, Events, Terms int
	// answers, by the verdict: skipped are those about parts that no tap saw
	Checked, Skipped int
}

// Add adds the counts of another record.
func (c *Counts) Add(o Counts) {
	c.Writes, c.Unknown, c.Reads, c.Watches = c.Writes+o.Writes, c.Unknown+o.Unknown, c.Reads+o.Reads,
		c.Watches+o.Watches
	c.Events, c.Terms, c.Checked, c.Skipped = c.Events+o.Events, c.Terms+o.Terms, c.Checked+o.Checked,
		c.Skipped+o.Skipped
}

// Counts returns how much happened.
func (r *Record) Counts() Counts {
	c := Counts{Terms: r.Terms()}
	r.mu.Lock()
	defer r.mu.Unlock()
	c.Writes, c.Reads, c.Watches, c.Checked, c.Skipped = len(r.writes), len(r.reads), len(r.watches), r.checked,
		r.skipped
	for _, w := range r.writes {
		if w.Outcome == Unknown {
			c.Unknown++
		}
	}
	for _, w := range r.watches {
		c.Events += len(w.deliveries)
	}
	return c
}

// Print writes everything, in the order of time.
func (r *Record) Print(w io.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	type line struct {
		at   int64
		text string
	}
	var lines []line
	add := func(at int64, format string, args ...any) {
		lines = append(lines, line{at, fmt.Sprintf(format, args...)})
	}
	for _, n := range r.notes {
		add(n.At, "%s", n.Text)
	}
	for _, o := range r.ledTerms {
		add(o.At, "server %d leads in term %d, at revision %d", o.Server, o.Term, o.Revision)
	}
	for _, x := range r.writes {
		add(x.Return, "%v require %v %s", x, x.Txn.Require, x.Err)
	}
	for _, x := range r.reads {
		add(x.Return, "%v kind %d asked %d: revision %d, %d items", x, x.Kind, x.Asked, x.Revision, len(x.Items))
	}
	for _, x := range r.watches {
		for _, d := range x.deliveries {
			add(d.At, "watch %v (life %d): revision %d %v", x, x.Life, d.Revision, d.Events)
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	for _, l := range lines {
		fmt.Fprintf(w, "%12.6f %s\n", float64(l.at)/1e9, l.text)
	}
}

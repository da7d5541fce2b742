package verify

import (
	"slices"
	"sync"
	"time"
)

// Verb is what a client asked for.
type Verb string

// The verbs.
const (
	Create Verb = "create"
	Update Verb = "update" // if it is at the required revision
	Delete Verb = "delete" // likewise
	Get    Verb = "get"
	List   Verb = "list"
)

// Outcome is what a client knows of its call.
type Outcome string

// The outcomes.
const (
	Done     Outcome = "done"
	Exists   Outcome = "exists"   // not executed: it was there
	Absent   Outcome = "absent"   // not executed: it was not there
	Conflict Outcome = "conflict" // not executed: it was there, and not at the required revision
	Refused  Outcome = "refused"  // not executed, for a reason that tells nothing about the object
	Unknown  Outcome = "unknown"  // nobody knows: it may take effect at any time
)

// Item is an object at a revision.
type Item struct {
	Name     string
	Token    string // what was written; each write has its own
	Revision uint64
}

// Call is what a client asked one server for, and what it was told. Times are since the record
// began.
type Call struct {
	Client, Server string
	Verb           Verb
	Name           string        // of the object; a list has none
	Token          string        // of what is written
	Require        uint64        // of Update and Delete
	Begin, End     time.Duration // End of one that nobody answered is when the client gave up
	Outcome        Outcome
	Revision       uint64 // of what was written, read or listed; a deletion tells none
	Items          []Item // listed, or the one that was read
	Error          string // for people
}

// Kind is what became of an object.
type Kind string

// The kinds.
const (
	Added    Kind = "added"
	Modified Kind = "modified"
	Deleted  Kind = "deleted"
	Progress Kind = "progress" // nothing: all up to the revision was told
)

// Event is what a watcher was told.
type Event struct {
	Kind Kind
	Item Item
}

// Watch is what one watcher was told, in one server's words or in those of several, one after the
// other.
type Watch struct {
	Name string

	record *Record
	parts  []part
}

// part is a time in which a watcher missed nothing: after from, all of events came.
type part struct {
	from   uint64
	items  []Item // the state at from
	events []Event
}

// last returns up to where it has seen everything.
func (p *part) last() uint64 {
	if n := len(p.events); n > 0 {
		return max(p.from, p.events[n-1].Item.Revision)
	}
	return p.from
}

// Record is what all clients and watchers were told. Its methods may be called from many
// goroutines.
type Record struct {
	start time.Time

	mu      sync.Mutex
	calls   []Call
	watches []*Watch
}

// NewRecord returns an empty record that begins at a time.
func NewRecord(start time.Time) *Record { return &Record{start: start} }

// Now is the time since the record began.
func (r *Record) Now() time.Duration { return time.Since(r.start) }

// Add notes a call that has returned.
func (r *Record) Add(c Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, c)
}

// Calls returns the calls so far.
func (r *Record) Calls() []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// Watch begins a watcher's part of the record.
func (r *Record) Watch(name string) *Watch {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &Watch{Name: name, record: r}
	r.watches = append(r.watches, w)
	return w
}

// Restart is called when the watcher has listed, and goes on from there: in the beginning, and when
// it was told that history does not reach back to where it was.
func (w *Watch) Restart(revision uint64, items []Item) {
	w.record.mu.Lock()
	defer w.record.mu.Unlock()
	w.parts = append(w.parts, part{from: revision, items: items})
}

// Event is called with each event in the order in which they come.
func (w *Watch) Event(e Event) {
	w.record.mu.Lock()
	defer w.record.mu.Unlock()
	p := &w.parts[len(w.parts)-1]
	p.events = append(p.events, e)
}

// Last returns the revision after which the watcher goes on, and whether there is one.
func (w *Watch) Last() (revision uint64, ok bool) {
	w.record.mu.Lock()
	defer w.record.mu.Unlock()
	if len(w.parts) == 0 {
		return 0, false
	}
	return w.parts[len(w.parts)-1].last(), true
}

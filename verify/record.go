package verify

import (
	"slices"
	"sync"
	"time"
)

// Verb is the kind of a call.
type Verb string

// The verbs.
const (
	Create Verb = "create"
	Update Verb = "update" // if it is at the required revision
	Delete Verb = "delete" // likewise
	Get    Verb = "get"
	List   Verb = "list"
)

// Outcome is the client's knowledge of its call's effect.
type Outcome string

// The outcomes.
const (
	Done     Outcome = "done"
	Exists   Outcome = "exists"   // not executed: the object existed
	Absent   Outcome = "absent"   // not executed: the object did not exist
	Conflict Outcome = "conflict" // not executed: the object was not at the required revision
	Refused  Outcome = "refused"  // not executed, for a reason that says nothing of the object
	Unknown  Outcome = "unknown"  // the call may take effect at any time
)

// Item is an object at a revision.
type Item struct {
	Name     string
	Token    string // the content; each write has its own
	Revision uint64
}

// Call is a client's request to one server, and the answer. Times count from the start of the
// record.
type Call struct {
	Client, Server string
	Verb           Verb
	Name           string        // of the object; a list has none
	Token          string        // of a write
	Require        uint64        // of Update and Delete
	Begin, End     time.Duration // without an answer End is when the client gave up
	Outcome        Outcome
	Revision       uint64 // of the write, read or list; a deletion returns none
	Items          []Item // the list, or the object read
	Error          string // for people
}

// Kind is the type of an event.
type Kind string

// The kinds.
const (
	Added    Kind = "added"
	Modified Kind = "modified"
	Deleted  Kind = "deleted"
	Progress Kind = "progress" // no change: all events up to the revision came before
)

// Event is one event of a watch.
type Event struct {
	Kind Kind
	Item Item
}

// Watch is the record of one watcher, from one server or from several in turn.
type Watch struct {
	Name string

	record *Record
	parts  []part
}

// part is a stretch without missed events: all events after from are in events.
type part struct {
	from   uint64
	items  []Item // the state at from
	events []Event
}

// last returns the revision up to which the watcher has seen everything.
func (p *part) last() uint64 {
	if n := len(p.events); n > 0 {
		return max(p.from, p.events[n-1].Item.Revision)
	}
	return p.from
}

// Record has all answers to clients and all events of watchers. Its methods may be called from any
// goroutine.
type Record struct {
	start time.Time

	mu      sync.Mutex
	calls   []Call
	watches []*Watch
}

// NewRecord returns an empty record whose times count from start.
func NewRecord(start time.Time) *Record { return &Record{start: start} }

// Now is the time since the record began.
func (r *Record) Now() time.Duration { return time.Since(r.start) }

// Add records a call that has returned.
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

// Watch begins the record of a watcher.
func (r *Record) Watch(name string) *Watch {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &Watch{Name: name, record: r}
	r.watches = append(r.watches, w)
	return w
}

// Restart records a list from which the watcher goes on: its first, and one after the answer that
// its revision is compacted.
func (w *Watch) Restart(revision uint64, items []Item) {
	w.record.mu.Lock()
	defer w.record.mu.Unlock()
	w.parts = append(w.parts, part{from: revision, items: items})
}

// Event records an event. Events come in the watcher's order.
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

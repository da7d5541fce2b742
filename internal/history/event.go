// Package history judges the answers to clients and the events of watchers by a store's one
// history. The history is the union of all watchers' events, in the order of their revisions. It is
// a witness. Package linear searches for an order of operations that explains the answers. This
// package demands that the witnessed order explains them, in time proportional to their number.
//
// A time in which no watcher saw everything is a gap. After a gap the history goes on with a state
// that a watcher has read, and answers within the gap are counted and not judged. Rules of one
// store only, such as terms, expiry, and the author of a deletion, are judged by the caller. A Log
// is for one goroutine.
package history

import (
	"fmt"
	"strings"
)

// Item is the state of a key at a revision.
type Item struct {
	Key string
	// Value begins with the token of the write that put it, which no other write has. Other data
	// may follow a space. A value that begins with the space has no author to check.
	Value    string
	Revision uint64 // of its newest change
	Created  uint64 // the revision of its creation; 0 where it is not reported
	Expires  int64  // likewise
}

func (i Item) String() string {
	s := fmt.Sprintf("{Name:%s Token:%s Revision:%d", i.Key, i.Value, i.Revision)
	if i.Created != 0 {
		s += fmt.Sprintf(" Created:%d Expires:%d", i.Created, i.Expires)
	}
	return s + "}"
}

func token(value string) string {
	token, _, _ := strings.Cut(value, " ")
	return token
}

// Kind is the kind of a change.
type Kind string

// The kinds.
const (
	Added    Kind = "added"
	Modified Kind = "modified"
	Deleted  Kind = "deleted"
)

// Event is a watcher's event about a key: its new state, or the last state before its deletion. All
// watchers receive the same event at one revision.
type Event struct {
	Kind Kind
	Item Item
	Prev Item // the state before; only in a Full history
	Had  bool // there is a Prev
}

func (e Event) String() string {
	return fmt.Sprintf("%s %q with %q at %d", e.Kind, e.Item.Key, e.Item.Value, e.Item.Revision)
}

// follows reports whether an event at a revision can follow the given state of the key.
func (e *Event) follows(revision uint64, before Item, existed, full bool) bool {
	if existed != (e.Kind != Added) {
		return false
	}
	created := before.Created
	if !existed {
		created = revision
	}
	return !full || e.Item.Revision == revision && e.Item.Created == created && e.Had == existed && e.Prev == before &&
		(e.Kind != Deleted || e.Item.Value == before.Value)
}

// Entry has the changes at one revision, or, without events, the progress of a watcher.
type Entry struct {
	Revision uint64
	Events   []Event
	by       string // the first watcher that received it
}

func (e *Entry) String() string {
	if len(e.Events) == 1 {
		return e.Events[0].String()
	}
	return fmt.Sprintf("revision %d of %v", e.Revision, e.Events)
}

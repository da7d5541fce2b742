// Package history judges what watchers and clients of a store were told by the store's one history:
// all changes that all watchers together have seen, in the order of their revisions. The history is
// a witness. Package linear searches for an order of operations that explains the answers; this one
// demands that the witnessed order explains them, in time in proportion to their number.
//
// Times in which no watcher saw everything are gaps: the history goes on behind one with a state
// that a watcher has read, and answers about a gap are counted and not judged. Its users judge what
// only they know, as terms, expiry, and whose a deletion was. A Log is for one goroutine.
package history

import (
	"fmt"
	"strings"
)

// Item is what a key is at a revision.
type Item struct {
	Key string
	// Value begins with the token of the write that put it, which no other write has. Behind a
	// space is what else is told of it. Where the space comes first, nobody is asked who wrote it.
	Value    string
	Revision uint64 // of its newest change
	Created  uint64 // revision; 0 where that is not told
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

// Kind is what became of a key.
type Kind string

// The kinds.
const (
	Added    Kind = "added"
	Modified Kind = "modified"
	Deleted  Kind = "deleted"
)

// Event is what a watcher was told of a key: what it is now, or was until now. Two watchers are
// told the same of one revision.
type Event struct {
	Kind Kind
	Item Item
	Prev Item // what it was before; of a Full history
	Had  bool // there is a Prev
}

func (e Event) String() string {
	return fmt.Sprintf("%s %q with %q at %d", e.Kind, e.Item.Key, e.Item.Value, e.Item.Revision)
}

// follows tells whether an event may be that of a revision before which the key was so.
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

// Entry is what changed at one revision, or, without events, the progress of a watcher.
type Entry struct {
	Revision uint64
	Events   []Event
	by       string // the watcher that told it first
}

func (e *Entry) String() string {
	if len(e.Events) == 1 {
		return e.Events[0].String()
	}
	return fmt.Sprintf("revision %d of %v", e.Revision, e.Events)
}

package history

import (
	"slices"
	"strings"
)

// Op is a part of a write: it puts a value, or deletes.
type Op struct {
	Key, Value string
	Delete     bool
}

// Write is a client's write request.
type Write struct {
	What  any // names it
	Ops   []Op
	Never bool   // it must not take effect
	Seen  uint64 // its revision in the history; 0: it is missing
}

// Puts reports whether the write puts a value at a key; "": at any key.
func (w *Write) Puts(key string) bool {
	return slices.ContainsFunc(w.Ops, func(op Op) bool { return !op.Delete && (key == "" || op.Key == key) })
}

// Write adds a write.
func (l *Log) Write(w *Write) {
	for _, op := range w.Ops {
		if op.Delete {
			continue
		}
		if other := l.writes[token(op.Value)]; other != nil && other != w {
			l.Violated(Once, "%v: its token is not new; the workload is wrong", w.What)
		}
		l.writes[token(op.Value)] = w
	}
}

// Whole reports whether an entry has all changes of a write and no others: one event for each Put
// and for each Delete of an existing key, in their order.
func (l *Log) Whole(w *Write, e *Entry) bool {
	left := e.Events
	for _, op := range w.Ops {
		if len(left) > 0 && left[0].Item.Key == op.Key {
			if (left[0].Kind == Deleted) != op.Delete || !op.Delete && left[0].Item.Value != op.Value {
				return false
			}
			left = left[1:]
		} else if _, existed := l.At(op.Key, e.Revision-1); existed || !op.Delete {
			return false
		}
	}
	return len(left) == 0 && len(e.Events) > 0
}

// made checks that a new entry comes from a write that may have made it.
func (l *Log) made(e *Entry) {
	for _, ev := range e.Events {
		if ev.Kind == Deleted || strings.HasPrefix(ev.Item.Value, " ") {
			continue
		}
		w := l.writes[token(ev.Item.Value)]
		switch {
		case w == nil || !w.Puts(ev.Item.Key):
			l.Violated(OneHistory, "%s, and nobody wrote that", e)
			continue
		case w.Seen == e.Revision: // it puts more than one key
			continue
		case w.Seen != 0:
			l.Violated(Once, "%s: it took effect twice, before at %d", e, w.Seen)
		case w.Never:
			l.Violated(NotExecuted, "%s: it was not to take effect: %v", e, w.What)
		case !l.Whole(w, e):
			l.Violated(Acknowledged, "%s is not all of what took effect: %v", e, w.What)
		}
		w.Seen = e.Revision
	}
}

// Acknowledged checks that a write took effect by its acknowledged revision; exactly there, if it
// puts a value.
func (l *Log) Acknowledged(w *Write, revision uint64) {
	if !l.Known(w.What, revision) {
		if w.Seen != 0 {
			l.Violated(Once, "%v, but the history has it at %d", w.What, w.Seen)
		}
		return
	}
	for _, op := range w.Ops {
		item, exists := l.At(op.Key, revision)
		if exists == op.Delete || !op.Delete && (item.Value != op.Value || item.Revision != revision) {
			l.Violated(Acknowledged, "%v, but the history has %v", w.What, item)
			return
		}
	}
}

package verify

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// world is a correct store with two watchers that see everything.
type world struct {
	*Record
	now      time.Duration
	revision uint64
	items    map[string]Item
	events   []Event
	a, b     *Watch
}

func newWorld() *world {
	w := &world{Record: NewRecord(time.Now()), revision: 10, items: make(map[string]Item)}
	w.a, w.b = w.Watch("a"), w.Watch("b")
	w.a.Restart(10, nil)
	w.b.Restart(10, nil)
	return w
}

// happen applies a write and sends no watcher its event.
func (w *world) happen(kind Kind, name, token string) Event {
	w.revision++
	item := Item{name, token, w.revision}
	if kind == Deleted {
		item.Token = w.items[name].Token
		delete(w.items, name)
	} else {
		w.items[name] = item
	}
	e := Event{kind, item}
	w.events = append(w.events, e)
	return e
}

func (w *world) show(e Event) {
	w.a.Event(e)
	w.b.Event(e)
}

// call returns a call that took a moment and is not recorded yet.
func (w *world) call(verb Verb, name, token string, require uint64) Call {
	w.now += 2 * time.Millisecond
	return Call{Client: "c", Server: "s1", Verb: verb, Name: name, Token: token, Require: require,
		Begin: w.now - time.Millisecond, End: w.now, Outcome: Done}
}

func (w *world) write(name, token string) {
	verb, kind, require := Create, Added, uint64(0)
	if old, ok := w.items[name]; ok {
		verb, kind, require = Update, Modified, old.Revision
	}
	c := w.call(verb, name, token, require)
	w.show(w.happen(kind, name, token))
	c.Revision = w.revision
	w.Add(c)
}

func (w *world) remove(name string) {
	c := w.call(Delete, name, "", w.items[name].Revision)
	w.show(w.happen(Deleted, name, ""))
	w.Add(c)
}

func (w *world) get(name string) {
	c := w.call(Get, name, "", 0)
	if item, ok := w.items[name]; ok {
		c.Items, c.Revision = []Item{item}, item.Revision
	} else {
		c.Outcome = Absent
	}
	w.Add(c)
}

func (w *world) list() Call {
	c := w.call(List, "", "", 0)
	c.Revision = w.revision
	for _, i := range w.items {
		c.Items = append(c.Items, i)
	}
	return c
}

// some makes a history with every kind of change.
func some(w *world) {
	w.get("x")
	w.write("x", "t1")
	w.write("y", "t2")
	w.write("x", "t3")
	w.get("x")
	w.Add(w.list())
	w.remove("y")
	w.get("y")
	w.write("y", "t4")
	for i, o := range []Outcome{Conflict, Exists, Absent, Refused} {
		verb, name, require := Update, "x", uint64(1)
		switch o {
		case Exists:
			verb, require = Create, 0
		case Absent:
			name = "z"
		}
		c := w.call(verb, name, fmt.Sprintf("no%d", i), require)
		c.Outcome = o
		w.Add(c)
	}
	lost := w.call(Update, "x", "t5", w.items["x"].Revision)
	lost.Outcome = Unknown
	w.show(w.happen(Modified, "x", "t5"))
	w.Add(lost)
	never := w.call(Update, "y", "t6", w.items["y"].Revision)
	never.Outcome = Unknown
	w.Add(never)
	w.get("x")
	gone := w.call(Delete, "y", "", w.items["y"].Revision)
	gone.Outcome = Unknown
	w.show(w.happen(Deleted, "y", ""))
	w.Add(gone)
	w.get("y")
	w.show(Event{Progress, Item{Revision: w.revision}})
	w.write("y", "t7")
	late := w.Watch("late")
	late.Restart(13, []Item{{"x", "t3", 13}, {"y", "t2", 12}})
	for _, e := range w.events[3:] {
		late.Event(e)
	}
}

func TestNothingWrong(t *testing.T) {
	w := newWorld()
	some(w)
	v := w.Judge(time.Minute)
	for _, wrong := range v.Violations {
		t.Error(wrong)
	}
	if v.Checked < 9 || v.Skipped != 0 || v.Revisions != 9-1 {
		t.Errorf("%+v", v)
	}
}

// TestBrokenPromises has faults of a wrong cluster. Each must be found.
func TestBrokenPromises(t *testing.T) {
	for _, c := range []struct {
		name, want string
		do         func(w *world)
	}{
		{"an acknowledged write is lost", "but the history has", func(w *world) {
			c := w.call(Create, "z", "t9", 0)
			w.revision++
			c.Revision = w.revision
			w.Add(c)
			w.write("x", "t10")
		}},
		{"another revision is acknowledged", "but the history has", func(w *world) {
			c := w.call(Create, "z", "t9", 0)
			w.show(w.happen(Added, "z", "t9"))
			w.write("x", "t10")
			c.Revision = w.revision
			w.Add(c)
		}},
		{"a write takes effect twice", "took effect twice", func(w *world) {
			w.write("x", "t9")
			w.show(w.happen(Modified, "x", "t9"))
		}},
		{"a refused write takes effect", "was not to take effect", func(w *world) {
			c := w.call(Update, "x", "t9", 1)
			c.Outcome = Conflict
			w.show(w.happen(Modified, "x", "t9"))
			w.Add(c)
		}},
		{"a write that nobody made", "nobody wrote", func(w *world) { w.show(w.happen(Modified, "x", "ghost")) }},
		{"a deletion that nobody made", "nobody deleted", func(w *world) { w.show(w.happen(Deleted, "x", "")) }},
		{"a deletion that did not happen", "is not linearizable", func(w *world) {
			w.Add(w.call(Delete, "x", "", w.items["x"].Revision))
			w.get("x")
		}},
		{"an acknowledged deletion is lost", "no deletion", func(w *world) {
			w.Add(w.call(Delete, "x", "", w.items["x"].Revision))
			w.write("end", "end")
		}},
		{"an old read", "was told to somebody", func(w *world) {
			old := w.items["x"]
			w.write("x", "t9")
			c := w.call(Get, "x", "", 0)
			c.Items, c.Revision = []Item{old}, old.Revision
			w.Add(c)
		}},
		{"a read of nothing", "not linearizable", func(w *world) {
			c := w.call(Get, "x", "", 0)
			c.Outcome = Absent
			w.Add(c)
		}},
		{"a read of another value", "but the history has", func(w *world) {
			c := w.call(Get, "x", "", 0)
			c.Items, c.Revision = []Item{{"x", "other", w.items["x"].Revision}}, w.items["x"].Revision
			w.Add(c)
		}},
		{"an old list", "was told to somebody", func(w *world) {
			c := w.list()
			w.write("z", "t9")
			d := w.call(List, "", "", 0)
			d.Revision, d.Items = c.Revision, c.Items
			w.Add(d)
		}},
		{"a list misses one", "misses", func(w *world) {
			c := w.list()
			c.Items = c.Items[:1]
			w.Add(c)
		}},
		{"a list has one too many", "but the history has", func(w *world) {
			c := w.list()
			c.Items = append(c.Items, Item{"more", "more", 11})
			w.Add(c)
		}},
		{"a write on top of an old revision", "not linearizable", func(w *world) {
			old := w.items["x"].Revision
			w.write("x", "t9")
			c := w.call(Update, "x", "t10", old)
			w.show(w.happen(Modified, "x", "t10"))
			c.Revision = w.revision
			w.Add(c)
		}},
		{"a creation of what exists", "before it was there: true", func(w *world) {
			c := w.call(Create, "x", "t9", 0)
			w.show(w.happen(Added, "x", "t9"))
			c.Revision = w.revision
			w.Add(c)
		}},
		{"the revision goes back", "was told to somebody", func(w *world) {
			c := w.call(Create, "z", "t9", 0)
			c.Revision = 12
			w.Add(c)
		}},
		{"a watcher misses one", "was not told", func(w *world) {
			c := w.call(Create, "z", "t9", 0)
			w.a.Event(w.happen(Added, "z", "t9"))
			c.Revision = w.revision
			w.Add(c)
			w.write("x", "t10")
		}},
		{"a watcher gets one again", "after revision", func(w *world) { w.a.Event(w.events[3]) }},
		{"a watcher gets them in another order", "after revision", func(w *world) {
			for _, token := range []string{"t9", "t10"} {
				w.Add(w.call(Create, token, token, 0))
			}
			first, second := w.happen(Added, "t9", "t9"), w.happen(Added, "t10", "t10")
			w.a.Event(second)
			w.a.Event(first)
		}},
		{"two watchers differ", "two watchers differ", func(w *world) {
			e := w.happen(Modified, "x", "t9")
			w.a.Event(e)
			e.Item.Token = "other"
			w.b.Event(e)
		}},
		{"progress overtakes", "after revision", func(w *world) {
			w.b.Event(Event{Progress, Item{Revision: w.revision + 1}})
			w.write("x", "t9")
		}},
		{"progress goes back", "progress at revision",
			func(w *world) { w.b.Event(Event{Progress, Item{Revision: 11}}) }},
		{"progress covers what was not told", "was not told", func(w *world) {
			w.a.Event(w.happen(Deleted, "x", ""))
			w.b.Event(Event{Progress, Item{Revision: w.revision}})
		}},
		{"a watcher begins anew in the past", "began anew", func(w *world) { w.a.Restart(11, nil) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			some(w)
			c.do(w)
			v := w.Judge(time.Minute)
			if !strings.Contains(strings.Join(v.Violations, "\n"), c.want) {
				t.Errorf("not found: %q in %q", c.want, v.Violations)
			}
		})
	}
}

// TestGap: an answer about a time without a watcher cannot be checked, and is no violation.
func TestGap(t *testing.T) {
	w := newWorld()
	some(w)
	for i := range 3 {
		c := w.call(Update, "x", fmt.Sprintf("g%d", i), w.items["x"].Revision)
		w.happen(Modified, "x", c.Token)
		c.Revision = w.revision
		w.Add(c)
	}
	var items []Item
	for _, i := range w.items {
		items = append(items, i)
	}
	w.a.Restart(w.revision, items)
	w.b.Restart(w.revision, items)
	w.write("x", "t9")
	w.get("x")
	w.Add(w.list())
	v := w.Judge(time.Minute)
	for _, wrong := range v.Violations {
		t.Error(wrong)
	}
	if v.Skipped < 2 || v.Skipped > 3 || len(v.Unjudged) != 1 || !strings.Contains(v.Unjudged[0], `update of "x"`) {
		t.Errorf("%d answers were skipped, want those of the gap, which are told: %q", v.Skipped, v.Unjudged)
	}
	// After the gap every answer is checked again.
	w.show(w.happen(Deleted, "x", ""))
	c := w.list()
	c.Items = append(c.Items, Item{"x", "t9", w.revision - 1})
	w.Add(c)
	if v := w.Judge(time.Minute); len(v.Violations) < 2 {
		t.Errorf("found only %q", v.Violations)
	}
}

// TestManyUnknown: the search ends, however many writes have no known outcome.
func TestManyUnknown(t *testing.T) {
	w := newWorld()
	w.write("x", "first")
	for i := range 3000 {
		c := w.call(Update, "x", fmt.Sprintf("u%d", i), w.items["x"].Revision)
		c.Outcome = Unknown
		if i%10 == 0 {
			w.show(w.happen(Modified, "x", c.Token))
		}
		w.Add(c)
		w.get("x")
	}
	w.write("end", "end")
	v := w.Judge(time.Minute)
	for _, wrong := range slices.Concat(v.Violations, v.Unjudged) {
		t.Error(wrong)
	}
}

// TestOpenEnd: answers beyond the watchers' last events are not judged. All others are.
func TestOpenEnd(t *testing.T) {
	for name, c := range map[string]struct {
		do      func(w *world)
		skipped int
	}{
		"writes": {func(w *world) {
			c := w.call(Update, "x", "t9", w.items["x"].Revision)
			w.happen(Modified, "x", "t9")
			c.Revision = w.revision
			w.Add(c)
			w.get("x")
			w.Add(w.list())
		}, 3},
		"a deletion": {func(w *world) {
			c := w.call(Delete, "x", "", w.items["x"].Revision)
			w.happen(Deleted, "x", "")
			w.Add(c)
			w.get("x")
		}, 1},
		"a deletion, and then a write": {func(w *world) {
			c := w.call(Delete, "x", "", w.items["x"].Revision)
			w.happen(Deleted, "x", "")
			w.Add(c)
			d := w.call(Create, "z", "t9", 0)
			w.happen(Added, "z", "t9")
			d.Revision = w.revision
			w.Add(d)
		}, 2},
		"a write without an answer, which others meet": {func(w *world) {
			c := w.call(Create, "z", "t9", 0)
			c.Outcome = Unknown
			w.happen(Added, "z", "t9")
			w.Add(c)
			d := w.call(Create, "z", "t10", 0)
			d.Outcome = Exists
			w.Add(d)
			w.get("z")
		}, 1},
	} {
		w := newWorld()
		some(w)
		c.do(w)
		if v := w.Judge(time.Minute); len(v.Violations) > 0 || len(v.Unjudged) != 1 || v.Skipped != c.skipped {
			t.Errorf("%s: %q, not judged %q, %d answers were skipped", name, v.Violations, v.Unjudged, v.Skipped)
		}
		w.a.Event(w.events[3]) // a second time
		if v := w.Judge(time.Minute); !strings.Contains(strings.Join(v.Violations, "\n"), "after revision") {
			t.Errorf("%s: a watcher that was told twice was not found: %q", name, v.Violations)
		}
	}
}

// TestBeforeTheBeginning: a write without an answer may take effect, and be overwritten, before any
// watcher starts.
func TestBeforeTheBeginning(t *testing.T) {
	w := newWorld()
	c := w.call(Create, "x", "t1", 0)
	c.Outcome = Unknown
	c.End = w.now + time.Second
	w.Add(c)
	w.happen(Added, "x", "t1") // at 11
	d := w.call(Create, "x", "t2", 0)
	d.Outcome = Exists
	w.Add(d)
	var items []Item
	for _, i := range w.items {
		items = append(items, i)
	}
	w.a.parts, w.b.parts = nil, nil
	w.a.Restart(w.revision, items)
	w.b.Restart(w.revision, items)
	w.now += 2 * time.Second
	w.write("x", "t3")
	w.write("end", "end")
	if v := w.Judge(time.Minute); len(v.Violations) > 0 {
		t.Errorf("%q", v.Violations)
	}
}

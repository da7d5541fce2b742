package audit

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/barque/barque/raftstore/kv"
)

var errNo = errors.New("no")

// world is a store that does everything right, one watcher that sees everything, and one of /a/.
type world struct {
	log      *Log
	revision uint64
	items    map[string]kv.Item
	batches  []kv.Batch
	all, a   *Stream
}

func newWorld() *world {
	w := &world{log: New(0, nil), items: make(map[string]kv.Item)}
	w.all, w.a = w.log.Watch("all", "", 0), w.log.Watch("a", "/a/", 0)
	return w
}

func puts(token string, keys ...string) (ops []kv.Op) {
	for _, k := range keys {
		ops = append(ops, kv.Op{Kind: kv.Put, Key: k, Value: Value(token, k)})
	}
	return ops
}

func deletes(key string) []kv.Op { return []kv.Op{{Kind: kv.Delete, Key: key}} }

// execute brings the operations into effect and shows nobody.
func (w *world) execute(ops []kv.Op) kv.Batch {
	w.revision++
	b := kv.Batch{Revision: w.revision}
	for _, op := range ops {
		old, exists := w.items[op.Key]
		ev := kv.Event{Kind: kv.Created, Item: kv.Item{Key: op.Key, Value: op.Value, CreateRevision: w.revision, ModRevision: w.revision}}
		if exists {
			ev.Kind, ev.Prev, ev.Item.CreateRevision = kv.Modified, &old, old.CreateRevision
		}
		if op.Kind == kv.Delete {
			ev.Kind, ev.Item.Value = kv.Deleted, old.Value
			delete(w.items, op.Key)
		} else {
			w.items[op.Key] = ev.Item
		}
		b.Events = append(b.Events, ev)
	}
	w.batches = append(w.batches, b)
	return b
}

// show delivers a batch to the watchers that want it.
func (w *world) show(b kv.Batch) {
	w.all.Batch(b)
	f := kv.Batch{Revision: b.Revision}
	for _, ev := range b.Events {
		if strings.HasPrefix(ev.Item.Key, "/a/") {
			f.Events = append(f.Events, ev)
		}
	}
	w.a.Batch(f)
}

// write is a transaction with which nothing goes wrong.
func (w *world) write(token string, ops []kv.Op) {
	c := w.log.BeginWrite("write "+token, token, ops)
	w.show(w.execute(ops))
	c.Committed(w.revision)
}

func (w *world) state() (items []kv.Item) {
	for _, i := range w.items {
		items = append(items, i)
	}
	return items
}

func (w *world) read(fresh bool, keys ...string) {
	c := w.log.Begin("read")
	var items []kv.Item
	for _, k := range keys {
		if i, ok := w.items[k]; ok {
			items = append(items, i)
		}
	}
	c.Read(w.revision, keys, items, fresh)
}

func some(w *world) {
	w.write("t1", puts("t1", "/a/1", "/b/1"))
	w.write("t2", puts("t2", "/a/1"))
	w.write("t3", deletes("/b/1"))
	w.write("t4", puts("t4", "/b/1"))
}

func TestNoFault(t *testing.T) {
	w := newWorld()
	some(w)
	w.read(true, "/a/1", "/b/1", "/c")
	stale := w.log.Begin("a stale read")
	stale.Read(3, []string{"/b/1"}, nil, false)
	lost := w.log.BeginWrite("lost", "t5", puts("t5", "/a/2"))
	w.show(w.execute(puts("t5", "/a/2")))
	lost.Unknown()
	w.log.BeginWrite("never came", "t6", puts("t6", "/a/3")).Unknown()
	conflict := w.log.BeginWrite("conflict", "t7", puts("t7", "/a/1"))
	current := w.items["/a/1"]
	conflict.Conflict(&kv.ConflictError{Key: "/a/1", Current: &current, Revision: w.revision})
	early := w.log.BeginWrite("answered before it is seen", "t8", puts("t8", "/a/4"))
	b := w.execute(puts("t8", "/a/4"))
	early.Committed(b.Revision)
	w.read(true, "/a/4")
	w.show(b)
	w.show(w.execute([]kv.Op{{Kind: kv.Put, Key: "/own", Value: []byte("what the store itself writes")}}))
	other := w.log.Watch("late", "", 2)
	for _, b := range w.batches[2:] {
		other.Batch(b)
	}
	w.log.State("s0", w.revision, w.state())
	w.log.Finish(w.revision)
	if f := w.log.Faults(); len(f) > 0 {
		t.Error(f)
	}
	if checked, skipped := w.log.Checked(); checked < 9 || skipped != 0 {
		t.Errorf("%d answers checked, %d skipped", checked, skipped)
	}
}

// TestFaults is a list of what a wrong store might do. Each must be found.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name, want string
		do         func(w *world)
	}{
		{"an acknowledged write is lost", "but the log has", func(w *world) {
			c := w.log.BeginWrite("lost", "t5", puts("t5", "/a/2"))
			c.Committed(w.revision + 1)
			w.write("t6", puts("t6", "/a/3"))
		}},
		{"an acknowledged write is lost at the end", "it speaks of revision 5", func(w *world) {
			w.log.BeginWrite("lost", "t5", puts("t5", "/a/2")).Committed(w.revision + 1)
		}},
		{"another revision is acknowledged", "is in the log at 5", func(w *world) {
			c := w.log.BeginWrite("other", "t5", puts("t5", "/a/2"))
			w.show(w.execute(puts("t5", "/a/2")))
			w.write("t6", puts("t6", "/a/3"))
			c.Committed(w.revision)
		}},
		{"half a transaction", "but the log has", func(w *world) {
			c := w.log.BeginWrite("half", "t5", puts("t5", "/a/2", "/a/3"))
			w.show(w.execute(puts("t5", "/a/2")))
			c.Committed(w.revision)
		}},
		{"half a transaction of unknown outcome", "has 2 operations", func(w *world) {
			c := w.log.BeginWrite("half", "t5", puts("t5", "/a/2", "/a/3"))
			w.show(w.execute(puts("t5", "/a/3")))
			c.Unknown()
		}},
		{"another value", "but the log has", func(w *world) {
			c := w.log.BeginWrite("value", "t5", puts("t5", "/a/2"))
			w.show(w.execute([]kv.Op{{Kind: kv.Put, Key: "/a/2", Value: Value("t5", "other")}}))
			c.Committed(w.revision)
		}},
		{"twice", "took effect twice", func(w *world) {
			c := w.log.BeginWrite("twice", "t5", puts("t5", "/a/2"))
			w.show(w.execute(puts("t5", "/a/2")))
			w.show(w.execute(puts("t5", "/a/2")))
			c.Committed(w.revision)
		}},
		{"refused, and later executed", "was refused, and took effect", func(w *world) {
			w.log.BeginWrite("refused", "t5", puts("t5", "/a/2")).Refused(errNo)
			w.show(w.execute(puts("t5", "/a/2")))
		}},
		{"executed, and then refused", "but it is in the log", func(w *world) {
			c := w.log.BeginWrite("refused", "t5", puts("t5", "/a/2"))
			w.show(w.execute(puts("t5", "/a/2")))
			c.Refused(errNo)
		}},
		{"a write that nobody made", "nobody wrote", func(w *world) { w.show(w.execute(puts("t5", "/a/2"))) }},
		{"the revision goes back", "after 4 was told", func(w *world) {
			w.log.BeginWrite("back", "t5", puts("t5", "/a/2")).Committed(3)
		}},
		{"an old read", "read at revision 3, after 4", func(w *world) {
			w.log.Begin("old").Read(3, []string{"/b/1"}, nil, true)
		}},
		{"a wrong read", "but the log has", func(w *world) {
			w.log.Begin("wrong").Read(4, []string{"/b/1"}, nil, true)
		}},
		{"a wrong old read", "but the log has", func(w *world) {
			w.log.Begin("wrong").Read(2, []string{"/b/1"}, nil, false)
		}},
		{"a wrong conflict", "but the log has", func(w *world) {
			w.log.BeginWrite("conflict", "t5", puts("t5", "/a/1")).Conflict(&kv.ConflictError{Key: "/a/1", Revision: 4})
		}},
		{"a watcher misses one", "revision 6 follows 4", func(w *world) {
			w.execute(nil)
			w.all.Batch(w.execute(puts("t5", "/a/2")))
		}},
		{"a watcher gets one again", "revision 4 after 4", func(w *world) { w.all.Batch(w.batches[3]) }},
		{"progress overtakes", "progress at revision 5, when it has delivered up to 4", func(w *world) {
			w.all.Batch(kv.Batch{Revision: 5})
		}},
		{"progress goes back", "progress at revision 3 after 4", func(w *world) { w.a.Batch(kv.Batch{Revision: 3}) }},
		{"progress overtakes with a prefix", "it got nothing where the log has", func(w *world) {
			w.log.BeginWrite("w", "t5", puts("t5", "/a/2")).Unknown()
			b := w.execute(puts("t5", "/a/2"))
			w.all.Batch(b)
			w.a.Batch(kv.Batch{Revision: b.Revision})
		}},
		{"half a batch with a prefix", "where the log has", func(w *world) {
			w.log.BeginWrite("w", "t5", puts("t5", "/a/2", "/a/3")).Unknown()
			b := w.execute(puts("t5", "/a/2", "/a/3"))
			w.all.Batch(b)
			w.a.Batch(kv.Batch{Revision: b.Revision, Events: b.Events[:1]})
		}},
		{"a watcher begins anew in the past", "begins anew", func(w *world) { w.all.Restart(2) }},
		{"two watchers differ", "two watchers differ", func(w *world) {
			b := w.batches[3]
			b.Events = nil
			for _, ev := range w.batches[3].Events {
				ev.Item.Value = Value("t4", "other")
				b.Events = append(b.Events, ev)
			}
			w.log.Watch("other", "", 3).Batch(b)
		}},
		{"a wrong previous item", "does not follow", func(w *world) {
			w.log.BeginWrite("w", "t5", puts("t5", "/a/1")).Unknown()
			b := w.execute(puts("t5", "/a/1"))
			b.Events[0].Prev.ModRevision--
			w.show(b)
		}},
		{"a creation of what exists", "does not follow", func(w *world) {
			w.log.BeginWrite("w", "t5", puts("t5", "/a/1")).Unknown()
			b := w.execute(puts("t5", "/a/1"))
			b.Events[0].Kind, b.Events[0].Prev, b.Events[0].Item.CreateRevision = kv.Created, nil, b.Revision
			w.show(b)
		}},
		{"a server misses a key", "is missing", func(w *world) { w.log.State("s1", 4, w.state()[:1]) }},
		{"a server has another value", "but the log has", func(w *world) {
			items := w.state()
			items[0].Value = nil
			w.log.State("s1", 4, items)
		}},
		{"a server has a key more", "but the log has", func(w *world) {
			w.log.State("s1", 4, append(w.state(), kv.Item{Key: "/more", CreateRevision: 4, ModRevision: 4}))
		}},
		{"a watcher stops", "watcher a came to revision 4", func(w *world) {
			w.log.BeginWrite("w", "t5", puts("t5", "/a/2")).Unknown()
			w.all.Batch(w.execute(puts("t5", "/a/2")))
		}},
		{"what nobody watched is lost", "was acknowledged at revision 5", func(w *world) {
			w.log.BeginWrite("lost", "t5", puts("t5", "/a/2")).Committed(5)
			w.revision += 3
			w.log.State("s0", w.revision, w.state())
			w.all.Restart(w.revision)
			w.a.Restart(w.revision)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			some(w)
			c.do(w)
			w.log.Finish(w.revision)
			faults := w.log.Faults()
			if !strings.Contains(strings.Join(faults, "\n"), c.want) {
				t.Errorf("not found: %q in %q", c.want, faults)
			}
		})
	}
}

// TestGap: watchers that all miss a part of the log go on behind it.
func TestGap(t *testing.T) {
	w := newWorld()
	some(w)
	for i := range 3 {
		token := fmt.Sprintf("g%d", i)
		ops := puts(token, "/a/"+token)
		c := w.log.BeginWrite("unseen", token, ops)
		b := w.execute(ops)
		c.Committed(w.revision)
		if i == 1 { // one watcher saw it, and does not know what came before
			w.log.Watch("behind the gap", "", w.revision-1).Batch(b)
		}
	}
	w.log.State("s0", w.revision, w.state())
	w.all.Restart(w.revision)
	w.a.Restart(w.revision)
	w.write("t9", puts("t9", "/a/g1"))
	w.read(true, "/a/g0", "/a/g1", "/b/1")
	w.log.State("s1", w.revision, w.state())
	for _, s := range w.log.streams {
		s.last = w.revision
	}
	w.log.Finish(w.revision)
	if f := w.log.Faults(); len(f) > 0 {
		t.Error(f)
	}
	if _, skipped := w.log.Checked(); skipped != 3 {
		t.Errorf("%d answers skipped, want the 3 of the gap", skipped)
	}
}

func TestFaultsAreBounded(t *testing.T) {
	w := newWorld()
	for range 2 * maxFaults {
		w.show(w.execute(puts("nobody", "/a/1")))
	}
	if f := w.log.Faults(); len(f) != maxFaults+1 || f[maxFaults] != fmt.Sprintf("and %d more", maxFaults) {
		t.Errorf("%d faults, the last: %s", len(f), f[len(f)-1])
	}
}

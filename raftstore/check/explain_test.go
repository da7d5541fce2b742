package check

import (
	"slices"
	"strings"
	"testing"

	"github.com/barque/barque/internal/history"
	"github.com/barque/barque/raftstore"
)

// shown is a store that does everything right, and the batches that a tap and a watcher of /a/ show
// of it. Its clock goes on with each call of a client.
type shown struct {
	*Record
	tap, a *Watch
	items  map[string]raftstore.Item
	last   uint64
	clock  int64
}

func newShown() *shown {
	r := NewRecord()
	return &shown{Record: r, tap: r.Watch(&Watch{Tap: true}), a: r.Watch(&Watch{Prefix: "/a/"}),
		items: make(map[string]raftstore.Item)}
}

// execute brings operations into effect, at one revision, and shows them to no watcher.
func (h *shown) execute(txn raftstore.Txn) raftstore.Batch {
	h.last++
	b := raftstore.Batch{Revision: h.last}
	for _, op := range txn.Ops {
		e := raftstore.Event{Kind: raftstore.Created,
			Item: raftstore.Item{Key: op.Key, Value: op.Value, CreateRevision: h.last, ModRevision: h.last}}
		if prev, ok := h.items[op.Key]; ok {
			e.Kind, e.Prev, e.Item.CreateRevision = raftstore.Modified, &prev, prev.CreateRevision
		}
		h.items[op.Key] = e.Item
		if op.Kind == raftstore.Delete {
			e.Kind, e.Item.Value = raftstore.Deleted, e.Prev.Value
			delete(h.items, op.Key)
		}
		b.Events = append(b.Events, e)
	}
	return b
}

// show sends the batch to the watchers.
func (h *shown) show(b raftstore.Batch) uint64 {
	h.tell(h.tap, b)
	b.Events = slices.DeleteFunc(slices.Clone(b.Events),
		func(e raftstore.Event) bool { return !strings.HasPrefix(e.Item.Key, "/a/") })
	h.tell(h.a, b)
	return b.Revision
}

func (h *shown) tell(w *Watch, b raftstore.Batch) {
	h.Deliver(w, b)
	if h.clock > 0 {
		w.deliveries[len(w.deliveries)-1].At = h.clock
	}
}

// put shows that keys have a value now, at one revision, which it returns.
func (h *shown) put(value string, keys ...string) uint64 {
	return h.show(h.execute(putting(value, keys...)))
}

// remove shows that a key is gone.
func (h *shown) remove(key string) uint64 { return h.show(h.execute(deleting(key))) }

// wrote notes a write.
func (h *shown) wrote(txn raftstore.Txn, outcome Outcome, revision uint64) *Write {
	h.clock += 10
	w := &Write{Call: h.clock - 8, Return: h.clock - 2, Txn: txn, Outcome: outcome, Revision: revision}
	h.writes = append(h.writes, w)
	return w
}

// write makes one with which nothing goes wrong.
func (h *shown) write(txn raftstore.Txn) {
	h.wrote(txn, Done, h.last+1)
	h.show(h.execute(txn))
}

// state is a read of everything.
func (h *shown) state() *Read {
	h.clock += 10
	r := &Read{Call: h.clock - 8, Return: h.clock - 2, Revision: h.last}
	for _, i := range h.items {
		r.Items = append(r.Items, h.values.item(&i))
	}
	h.reads = append(h.reads, r)
	return r
}

func putting(value string, keys ...string) (t raftstore.Txn) {
	for _, key := range keys {
		t.Ops = append(t.Ops, raftstore.Op{Kind: raftstore.Put, Key: key, Value: []byte(value)})
	}
	return t
}

func deleting(keys ...string) (t raftstore.Txn) {
	for _, key := range keys {
		t.Ops = append(t.Ops, raftstore.Op{Kind: raftstore.Delete, Key: key})
	}
	return t
}

// TestADeleteDeletesAllThatIsThere: of two deletes that no watcher has seen, the one that names
// another key too has not made a revision in which that key stayed.
func TestADeleteDeletesAllThatIsThere(t *testing.T) {
	h := newShown()
	h.Write(Write{Client: 1, Call: h.Now(), Txn: putting("v1", "/m/0/a", "/m/0/b")},
		raftstore.Result{Revision: h.put("v1", "/m/0/a", "/m/0/b")}, nil)
	h.Write(Write{Client: 2, Call: h.Now(), Txn: deleting("/m/0/a", "/m/0/b")}, raftstore.Result{},
		raftstore.ErrUnknownOutcome)
	one := Write{Client: 3, Call: h.Now(), Txn: deleting("/m/0/b")}
	h.remove("/m/0/b")
	h.Write(one, raftstore.Result{}, raftstore.ErrUnknownOutcome)
	if got := h.Verdict(Options{}); len(got) != 0 {
		t.Error(got)
	}
	if both, one := h.writes[1].effect(), h.writes[2].effect(); both != 0 || one != 2 {
		t.Errorf("revision 2 is of the delete of both keys: %v; of the one: %v", both == 2, one == 2)
	}
}

// TestADeleteOfWhatWasSeenToBeGone: a delete that was asked for after watchers had seen the same
// delete found nothing. One of unknown outcome has made the revision.
func TestADeleteOfWhatWasSeenToBeGone(t *testing.T) {
	h := newShown()
	h.write(putting("v1", "/s/1"))
	lost := h.wrote(deleting("/s/1"), Unknown, 0)
	gone := h.remove("/s/1")
	late := h.wrote(deleting("/s/1"), Done, gone)
	if got := h.Verdict(Options{}); len(got) != 0 {
		t.Error(got)
	}
	if lost.effect() != gone || late.effect() != 0 {
		t.Errorf("revision %d is of the lost delete: %v; of the late one: %v", gone, lost.effect() == gone,
			late.effect() == gone)
	}
}

// TestAWriteThatLeavesOutADelete: an acknowledged write that was to delete a present key, and did
// not, has not stayed whole.
func TestAWriteThatLeavesOutADelete(t *testing.T) {
	h := newShown()
	h.Write(Write{Client: 1, Call: h.Now(), Txn: putting("v1", "/m/0/a")},
		raftstore.Result{Revision: h.put("v1", "/m/0/a")}, nil)
	half := putting("v2", "/m/0/b")
	half.Ops = append(half.Ops, deleting("/m/0/a").Ops...)
	h.Write(Write{Client: 1, Call: h.Now(), Txn: half}, raftstore.Result{Revision: h.put("v2", "/m/0/b")}, nil)
	if got := h.Verdict(Options{}); !found(got, history.Acknowledged) {
		t.Errorf("found %v", got)
	}
}

// TestThePreconditionOfAnotherKey: a write of unknown outcome that demanded something of a key
// which it does not change has not made a revision before which that key was something else.
func TestThePreconditionOfAnotherKey(t *testing.T) {
	h := newShown()
	h.Write(Write{Client: 1, Call: h.Now(), Txn: putting("v1", "/m/0/a", "/m/0/b")},
		raftstore.Result{Revision: h.put("v1", "/m/0/a", "/m/0/b")}, nil)
	demanding := deleting("/m/0/b")
	demanding.Require = []raftstore.Precondition{{Key: "/m/0/a", ModRevision: 7}}
	h.Write(Write{Client: 2, Call: h.Now(), Txn: demanding}, raftstore.Result{}, raftstore.ErrUnknownOutcome)
	free := Write{Client: 3, Call: h.Now(), Txn: deleting("/m/0/b")}
	h.remove("/m/0/b")
	h.Write(free, raftstore.Result{}, raftstore.ErrUnknownOutcome)
	if got := h.Verdict(Options{}); len(got) != 0 {
		t.Error(got)
	}
}

func found(all []history.Violation, promise string) bool {
	for _, v := range all {
		if v.Promise == promise {
			return true
		}
	}
	return false
}

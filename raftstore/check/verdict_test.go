package check

import (
	"slices"
	"testing"

	"github.com/barque/barque/internal/history"
	"github.com/barque/barque/raftstore"
)

// TestADeleteThatFoundNothing: a leader deletes a key that an earlier one has deleted, unseen by
// any watcher. Both may have made the revision, but the second one's term began after it.
func TestADeleteThatFoundNothing(t *testing.T) {
	for _, began := range []uint64{1, 2} {
		r := NewRecord()
		put := raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: "/s/2", Value: []byte("v1")}}}
		gone := func(term uint64) raftstore.Txn {
			return raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Delete, Key: "/s/2"}}, Term: term}
		}
		item := raftstore.Item{Key: "/s/2", Value: []byte("v1"), CreateRevision: 1, ModRevision: 1}
		r.Write(Write{Client: 1, Txn: put}, raftstore.Result{Revision: 1}, nil)
		r.Write(Write{Client: 2, Call: r.Now(), Txn: gone(4)}, raftstore.Result{}, raftstore.ErrUnknownOutcome)
		second := Write{Client: 3, Server: 1, Call: r.Now(), Txn: gone(5)} // before any watcher saw it
		tap := r.Watch(&Watch{Tap: true})
		r.Deliver(tap, raftstore.Batch{Revision: 1, Events: []raftstore.Event{{Kind: raftstore.Created, Item: item}}})
		deleted := item
		deleted.ModRevision = 2
		r.Deliver(tap,
			raftstore.Batch{Revision: 2,
				Events: []raftstore.Event{{Kind: raftstore.Deleted, Item: deleted, Prev: &item}}})
		r.LedTerm(LedTerm{Term: 4, Revision: 1})
		r.LedTerm(LedTerm{Server: 1, Term: 5, Revision: began})
		r.Write(second, raftstore.Result{Revision: 2}, nil)
		if got := r.Verdict(Options{}); len(got) != 0 {
			t.Errorf("the second term began at revision %d: %v", began, got)
		}
	}
}

// some is a history of four revisions: two keys, one of them put again, the other deleted and put
// again.
func some() *shown {
	h := newShown()
	h.write(putting("t1", "/a/1", "/b/1"))
	h.write(putting("t2", "/a/1"))
	h.write(deleting("/b/1"))
	h.write(putting("t4", "/b/1"))
	return h
}

// TestNothingWrong has all that a store may do that is not simply right.
func TestNothingWrong(t *testing.T) {
	h := some()
	h.state()
	h.reads = append(h.reads,
		&Read{Kind: Stale, Life: 1, Call: h.clock, Return: h.clock + 1, Revision: 3, Keys: []string{"/b/1"}})
	h.wrote(putting("t5", "/a/2"), Unknown, 0)
	h.show(h.execute(putting("t5", "/a/2")))
	h.wrote(putting("t6", "/a/3"), Unknown, 0)
	refused := h.wrote(putting("t7", "/a/1"), Conflicted, h.last)
	current := h.items["/a/1"]
	refused.Conflict = &raftstore.ConflictError{Key: "/a/1", Current: &current}
	refused.Txn.Require = []raftstore.Precondition{{Key: "/a/1"}}
	h.wrote(putting("t8", "/a/4"), Done, h.last+1)
	late := h.execute(putting("t8", "/a/4"))
	h.state()
	h.show(late)
	h.show(h.execute(putting("what the store itself puts", "\x00raftstore/x")))
	h.tell(h.a, raftstore.Batch{Revision: h.last})
	h.a.MustReach = h.last
	if got := h.Verdict(Options{HistoryOnly: true}); len(got) != 0 {
		t.Error(got)
	}
	if n := h.Counts(); n.Checked < 8 || n.Skipped != 0 {
		t.Errorf("%+v", n)
	}
}

// TestFaults is a list of the faults that a wrong store might have. Each must be found.
func TestFaults(t *testing.T) {
	t5 := putting("t5", "/a/2")
	both := putting("t5", "/a/2", "/a/3")
	changed := func(b raftstore.Batch, change func(e *raftstore.Event)) raftstore.Batch {
		b.Events = slices.Clone(b.Events)
		change(&b.Events[0])
		return b
	}
	for name, c := range map[string]struct {
		promise string
		do      func(h *shown)
	}{
		"an acknowledged write is lost": {history.Acknowledged, func(h *shown) {
			h.wrote(t5, Done, 5)
			h.write(putting("t6", "/a/3"))
		}},
		"an acknowledged write is lost at the end": {history.Acknowledged, func(h *shown) { h.wrote(t5, Done, 5) }},
		"an acknowledged delete is not made": {history.Acknowledged,
			func(h *shown) { h.wrote(deleting("/a/1"), Done, 4) }},
		"another revision is acknowledged": {history.Acknowledged,
			func(h *shown) { h.wrote(t5, Done, 6); h.show(h.execute(t5)); h.write(putting("t6", "/a/3")) }},
		"half a transaction": {history.Acknowledged,
			func(h *shown) { h.wrote(both, Done, 5); h.show(h.execute(t5)) }},
		"half a transaction of unknown outcome": {history.Acknowledged,
			func(h *shown) { h.wrote(both, Unknown, 0); h.show(h.execute(t5)) }},
		"a transaction and more": {history.Acknowledged, func(h *shown) {
			h.wrote(t5, Done, 5)
			both := putting("t5", "/a/2")
			both.Ops = append(both.Ops, deleting("/a/1").Ops...)
			h.show(h.execute(both))
		}},
		"another value": {history.Acknowledged,
			func(h *shown) { h.wrote(t5, Done, 5); h.show(h.execute(putting("t5 other", "/a/2"))) }},
		"another key": {history.OneHistory,
			func(h *shown) { h.wrote(t5, Unknown, 0); h.put("t5", "/a/3") }},
		"twice": {history.Once,
			func(h *shown) { h.wrote(t5, Done, 5); h.show(h.execute(t5)); h.show(h.execute(t5)) }},
		"refused, and executed": {history.NotExecuted,
			func(h *shown) { h.wrote(t5, Refused, 0); h.show(h.execute(t5)) }},
		"fenced, and executed": {history.NotExecuted,
			func(h *shown) { h.wrote(t5, Fenced, 0); h.show(h.execute(t5)) }},
		"a write that nobody made":            {history.OneHistory, func(h *shown) { h.show(h.execute(t5)) }},
		"a write of nothing that nobody made": {history.OneHistory, func(h *shown) { h.put("", "/a/2") }},
		"a delete that nobody made":           {ExpiryOnTime, func(h *shown) { h.remove("/a/1") }},
		"two writes have one token": {history.Once,
			func(h *shown) { h.wrote(t5, Unknown, 0); h.wrote(t5, Unknown, 0) }},
		"the revision goes back": {history.Linearizes, func(h *shown) { h.wrote(t5, Done, 3) }},
		"a read goes back": {history.Linearizes, func(h *shown) {
			*h.state() = Read{Call: h.clock - 8, Return: h.clock - 2, Revision: 3, Keys: []string{"/b/1"}}
		}},
		"a read goes back behind a stale one": {history.Linearizes, func(h *shown) {
			h.wrote(t5, Unknown, 0)
			h.show(h.execute(t5))
			h.tap.deliveries[4].At = 1 << 40
			h.state().Kind = Stale
			h.clock += 10
			h.reads = append(h.reads, &Read{Call: h.clock, Return: h.clock + 1, Revision: 4, Keys: []string{}})
		}},
		"a read leaves out a key": {history.OneHistory,
			func(h *shown) { r := h.state(); r.Items = r.Items[:1] }},
		"a read leaves out a key that was asked": {history.OneHistory,
			func(h *shown) { r := h.state(); r.Keys, r.Items = []string{"/b/1"}, nil }},
		"a read has a key more": {history.OneHistory, func(h *shown) {
			r := h.state()
			r.Items = append(r.Items, history.Item{Key: "/more", Created: 4, Revision: 4})
		}},
		"a read has a key twice": {history.OneHistory,
			func(h *shown) { r := h.state(); r.Items = append(r.Items, r.Items[0]) }},
		"a read has another value":        {history.OneHistory, func(h *shown) { h.state().Items[0].Value = "other" }},
		"a read has another creation":     {history.OneHistory, func(h *shown) { h.state().Items[0].Created++ }},
		"a read has another time to live": {history.OneHistory, func(h *shown) { h.state().Items[0].Expires++ }},
		"an old read is wrong": {history.OneHistory,
			func(h *shown) { h.reads = append(h.reads, &Read{Kind: Stale, Revision: 2, Keys: []string{"/b/1"}}) }},
		"a read of what never comes": {history.Acknowledged, func(h *shown) { h.state().Revision = 5 }},
		"a conflict with what is not there": {Preconditions, func(h *shown) {
			h.wrote(t5, Conflicted, 4).Conflict = &raftstore.ConflictError{Key: "/a/2",
				Current: &raftstore.Item{Key: "/a/2", ModRevision: 4}}
		}},
		"a conflict with nothing": {Preconditions,
			func(h *shown) { h.wrote(t5, Conflicted, 4).Conflict = &raftstore.ConflictError{Key: "/a/1"} }},
		"a conflict where there is none": {Preconditions, func(h *shown) {
			w := h.wrote(t5, Conflicted, 4)
			w.Conflict = &raftstore.ConflictError{Key: "/a/2"}
			w.Txn.Require = []raftstore.Precondition{{Key: "/a/2"}}
		}},
		"a precondition that does not hold": {Preconditions,
			func(h *shown) { txn := t5; txn.Require = []raftstore.Precondition{{Key: "/a/1"}}; h.write(txn) }},
		"a read of less than was asked": {MonotonicView,
			func(h *shown) { r := h.state(); r.Kind, r.Asked = AtLeast, 5 }},
		"a read of another revision": {MonotonicView,
			func(h *shown) { r := h.state(); r.Kind, r.Asked = At, 3 }},
		"a server goes back": {MonotonicView, func(h *shown) {
			h.state().Kind = Stale
			*h.state() = Read{Kind: Stale, Call: h.clock - 8, Return: h.clock - 2, Revision: 3, Keys: []string{}}
		}},
		"two servers lead in a term": {OneLeader,
			func(h *shown) { h.ledTerms = []LedTerm{{Term: 7, Revision: 4}, {Server: 1, Term: 7, Revision: 4}} }},
		"a write of a term that is over": {Fence, func(h *shown) {
			txn := t5
			txn.Term = 7
			h.ledTerms = []LedTerm{{Term: 7, Revision: 1}, {Server: 1, Term: 8, Revision: 4}}
			h.write(txn)
		}},
		"a write of a term that has not begun": {Fence,
			func(h *shown) { txn := t5; txn.Term = 7; h.ledTerms = []LedTerm{{Term: 7, Revision: 5}}; h.write(txn) }},
		"the previous item is another": {history.OneHistory, func(h *shown) {
			h.wrote(putting("t5", "/a/1"), Done, 5)
			h.show(changed(h.execute(putting("t5", "/a/1")), func(e *raftstore.Event) { e.Prev.ModRevision-- }))
		}},
		"there is no previous item": {history.OneHistory, func(h *shown) {
			h.wrote(putting("t5", "/a/1"), Done, 5)
			h.show(changed(h.execute(putting("t5", "/a/1")), func(e *raftstore.Event) { e.Prev = nil }))
		}},
		"what exists is created": {history.OneHistory, func(h *shown) {
			h.wrote(putting("t5", "/a/1"), Done, 5)
			h.show(changed(h.execute(putting("t5", "/a/1")), func(e *raftstore.Event) { e.Kind = raftstore.Created }))
		}},
		"what does not exist is modified": {history.OneHistory, func(h *shown) {
			h.wrote(t5, Done, 5)
			h.show(changed(h.execute(t5), func(e *raftstore.Event) { e.Kind = raftstore.Modified }))
		}},
		"a creation of before": {history.OneHistory, func(h *shown) {
			h.wrote(t5, Done, 5)
			h.show(changed(h.execute(t5), func(e *raftstore.Event) { e.Item.CreateRevision-- }))
		}},
		"an item of another revision": {history.OneHistory, func(h *shown) {
			h.wrote(t5, Done, 5)
			h.show(changed(h.execute(t5), func(e *raftstore.Event) { e.Item.ModRevision-- }))
		}},
		"another value is deleted": {history.OneHistory, func(h *shown) {
			h.wrote(deleting("/a/1"), Done, 5)
			h.show(changed(h.execute(deleting("/a/1")), func(e *raftstore.Event) { e.Item.Value = nil }))
		}},
		"no server shows a revision": {history.OneHistory,
			func(h *shown) { h.wrote(t5, Unknown, 0); h.execute(t5); h.write(putting("t6", "/a/3")) }},
		"progress to what no server shows": {history.OneHistory,
			func(h *shown) { h.tell(h.tap, raftstore.Batch{Revision: 5}) }},
		"two servers differ": {history.OneHistory, func(h *shown) {
			w := h.Watch(&Watch{Tap: true})
			h.write(t5)
			h.tell(w,
				changed(
					raftstore.Batch{Revision: 5,
						Events: []raftstore.Event{{Kind: raftstore.Created, Item: h.items["/a/2"]}}},
					func(e *raftstore.Event) { e.Item.Value = nil }))
		}},
		"a server leaves out a revision": {history.Reliable, func(h *shown) {
			w := h.Watch(&Watch{Tap: true})
			h.write(t5)
			b := h.execute(putting("t6", "/a/3"))
			h.wrote(putting("t6", "/a/3"), Done, 6)
			h.show(b)
			h.tell(w,
				raftstore.Batch{Revision: 4,
					Events: []raftstore.Event{{Kind: raftstore.Created, Item: h.items["/b/1"]}}})
			h.tell(w, b)
		}},
		"a watcher gets one again": {history.Unique,
			func(h *shown) { h.tell(h.a, raftstore.Batch{Revision: 2, Events: []raftstore.Event{{}}}) }},
		"a watcher gets what it did not ask for": {history.Resumable, func(h *shown) {
			h.tell(h.Watch(&Watch{Prefix: "/b/", After: 4}),
				raftstore.Batch{Revision: 3, Events: []raftstore.Event{{}}})
		}},
		"a watcher goes on too late": {history.Resumable, func(h *shown) {
			w := h.Watch(&Watch{Prefix: "/a/", After: 4, Resumes: true})
			h.write(t5)
			b := h.execute(putting("t6", "/a/3"))
			h.wrote(putting("t6", "/a/3"), Done, 6)
			h.show(b)
			h.tell(w, b)
		}},
		"a watcher misses one": {history.Reliable, func(h *shown) {
			w := h.Watch(&Watch{Prefix: "/a/", After: 4})
			h.write(t5)
			b := h.execute(putting("t6", "/a/3"))
			h.wrote(putting("t6", "/a/3"), Done, 6)
			h.show(b)
			h.tell(w, b)
		}},
		"a watcher stops": {history.Reliable,
			func(h *shown) { h.a.MustReach = 5; h.wrote(t5, Done, 5); h.tell(h.tap, h.execute(t5)) }},
		"a watcher gets them in another order": {history.Ordered, func(h *shown) {
			w := h.Watch(&Watch{Prefix: "/a/", After: 4})
			h.write(t5)
			b := h.execute(putting("t6", "/a/3"))
			h.wrote(putting("t6", "/a/3"), Done, 6)
			h.show(b)
			h.tell(w, b)
			h.tell(w,
				raftstore.Batch{Revision: 5,
					Events: []raftstore.Event{{Kind: raftstore.Created, Item: h.items["/a/2"]}}})
		}},
		"a watcher gets what no server shows": {history.Reliable, func(h *shown) {
			h.tell(h.a,
				raftstore.Batch{Revision: 5,
					Events: []raftstore.Event{
						{Kind: raftstore.Created, Item: raftstore.Item{Key: "/a/2", ModRevision: 5}}}})
		}},
		"a watcher gets half a revision": {history.Atomic, func(h *shown) {
			h.wrote(both, Done, 5)
			b := h.execute(both)
			h.tell(h.tap, b)
			b.Events = b.Events[:1]
			h.tell(h.a, b)
		}},
		"a watcher gets more than it wants": {history.Atomic, func(h *shown) {
			h.wrote(putting("t5", "/a/2", "/b/2"), Done, 5)
			b := h.execute(putting("t5", "/a/2", "/b/2"))
			h.tell(h.tap, b)
			h.tell(h.a, b)
		}},
		"a watcher gets something else": {history.OneHistory, func(h *shown) {
			h.wrote(t5, Done, 5)
			b := h.execute(t5)
			h.tell(h.tap, b)
			h.tell(h.a, changed(b, func(e *raftstore.Event) { e.Item.Value = nil }))
		}},
		"progress goes back": {history.Bookmarkable, func(h *shown) { h.tell(h.a, raftstore.Batch{Revision: 3}) }},
		"progress overtakes": {history.Bookmarkable, func(h *shown) {
			h.wrote(t5, Done, 5)
			b := h.execute(t5)
			h.tell(h.tap, b)
			h.tell(h.a, raftstore.Batch{Revision: 5})
		}},
		"progress covers what comes after it": {history.Bookmarkable,
			func(h *shown) { h.tell(h.a, raftstore.Batch{Revision: 5}); h.write(t5) }},
		"what no tap saw is lost": {history.Acknowledged, func(h *shown) {
			h.wrote(t5, Done, 5)
			h.Watch(&Watch{Tap: true, After: 6, Items: []raftstore.Item{h.items["/a/1"]}})
		}},
		"what no tap saw is old": {history.Acknowledged, func(h *shown) {
			h.wrote(putting("t5", "/a/1"), Done, 5)
			h.Watch(&Watch{Tap: true, After: 6, Items: []raftstore.Item{h.items["/a/1"]}})
		}},
	} {
		h := some()
		c.do(h)
		if got := h.Verdict(Options{HistoryOnly: true}); !found(got, c.promise) {
			t.Errorf("%s: found %v", name, got)
		}
	}
}

// TestGap: a part that no tap saw is not judged, and the history goes on behind it with the state
// that one has read.
func TestGap(t *testing.T) {
	h := some()
	for _, value := range []string{"g0", "g1", "g2"} {
		h.wrote(putting(value, "/a/"+value), Done, h.last+1)
		h.execute(putting(value, "/a/"+value))
	}
	h.wrote(putting("u", "/a/u"), Unknown, 0)
	tap := &Watch{Tap: true, After: h.last}
	for _, i := range h.items {
		tap.Items = append(tap.Items, i)
	}
	h.tap = h.Watch(tap)
	h.a = h.Watch(&Watch{Prefix: "/a/", After: h.last, Resumes: true})
	h.write(putting("t9", "/a/g1"))
	h.state()
	if got := h.Verdict(Options{HistoryOnly: true}); len(got) != 0 || h.Counts().Skipped != 2 {
		t.Errorf("%v, %d answers skipped, want 2 of the gap: the third one shows in the state", got, h.Counts().Skipped)
	}
	// A write of unknown outcome may take effect in the record that follows, once.
	next := newShown()
	next.Follow(h.Record)
	next.put("u", "/a/u")
	if got := next.Verdict(Options{}); len(got) != 0 {
		t.Error(got)
	}
	next.put("u", "/a/u")
	if got := next.Verdict(Options{}); !found(got, history.Once) {
		t.Errorf("found %v", got)
	}
	if next.Follow(next.Record); len(next.writes) != 1 {
		t.Errorf("%d writes follow for good", len(next.writes))
	}
}

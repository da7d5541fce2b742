package check

import (
	"testing"

	"github.com/barque/barque/raftstore"
)

// history records puts and deletes as a server shows them, one revision each.
type history struct {
	*Record
	tap   *Watch
	items map[string]raftstore.Item
	last  uint64
}

func newHistory() *history {
	r := NewRecord()
	return &history{Record: r, tap: r.Watch(&Watch{Tap: true}), items: make(map[string]raftstore.Item)}
}

// put shows that keys have a value now, at one revision, which it returns.
func (h *history) put(value string, keys ...string) uint64 {
	h.last++
	var events []raftstore.Event
	for _, key := range keys {
		item := raftstore.Item{Key: key, Value: []byte(value), CreateRevision: h.last, ModRevision: h.last}
		e := raftstore.Event{Kind: raftstore.Created, Item: item}
		if prev, ok := h.items[key]; ok {
			item.CreateRevision = prev.CreateRevision
			e = raftstore.Event{Kind: raftstore.Modified, Item: item, Prev: &prev}
		}
		h.items[key] = item
		events = append(events, e)
	}
	h.Deliver(h.tap, raftstore.Batch{Revision: h.last, Events: events})
	return h.last
}

// remove shows that a key is gone.
func (h *history) remove(key string) uint64 {
	h.last++
	prev := h.items[key]
	delete(h.items, key)
	item := prev
	item.ModRevision = h.last
	h.Deliver(h.tap, raftstore.Batch{Revision: h.last, Events: []raftstore.Event{{Kind: raftstore.Deleted, Item: item, Prev: &prev}}})
	return h.last
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

// TestADeleteDeletesAllThatIsThere: of two deletes of which nobody was told, the one that names
// another key too has not made a revision in which that key stayed.
func TestADeleteDeletesAllThatIsThere(t *testing.T) {
	h := newHistory()
	h.Write(Write{Client: 1, Call: h.Now(), Txn: putting("v1", "/m/0/a", "/m/0/b")}, raftstore.Result{Revision: h.put("v1", "/m/0/a", "/m/0/b")}, nil)
	h.Write(Write{Client: 2, Call: h.Now(), Txn: deleting("/m/0/a", "/m/0/b")}, raftstore.Result{}, raftstore.ErrUnknownOutcome)
	one := Write{Client: 3, Call: h.Now(), Txn: deleting("/m/0/b")}
	h.remove("/m/0/b")
	h.Write(one, raftstore.Result{}, raftstore.ErrUnknownOutcome)
	if got := h.Verdict(Options{}); len(got) != 0 {
		t.Error(got)
	}
	if both, one := h.writes[1].effect, h.writes[2].effect; both != 0 || one != 2 {
		t.Errorf("revision 2 is of the delete of both keys: %v; of the one: %v", both == 2, one == 2)
	}
}

// TestAWriteThatLeavesOutADelete: an acknowledged write that was to delete what was there, and did
// not, has not stayed whole.
func TestAWriteThatLeavesOutADelete(t *testing.T) {
	h := newHistory()
	h.Write(Write{Client: 1, Call: h.Now(), Txn: putting("v1", "/m/0/a")}, raftstore.Result{Revision: h.put("v1", "/m/0/a")}, nil)
	half := putting("v2", "/m/0/b")
	half.Ops = append(half.Ops, deleting("/m/0/a").Ops...)
	h.Write(Write{Client: 1, Call: h.Now(), Txn: half}, raftstore.Result{Revision: h.put("v2", "/m/0/b")}, nil)
	if got := h.Verdict(Options{}); !found(got, Acknowledged) {
		t.Errorf("found %v", got)
	}
}

// TestThePreconditionOfAnotherKey: a write of unknown outcome that demanded something of a key
// which it does not change has not made a revision before which that key was something else.
func TestThePreconditionOfAnotherKey(t *testing.T) {
	h := newHistory()
	h.Write(Write{Client: 1, Call: h.Now(), Txn: putting("v1", "/m/0/a", "/m/0/b")}, raftstore.Result{Revision: h.put("v1", "/m/0/a", "/m/0/b")}, nil)
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

func found(all []Violation, promise string) bool {
	for _, v := range all {
		if v.Promise == promise {
			return true
		}
	}
	return false
}

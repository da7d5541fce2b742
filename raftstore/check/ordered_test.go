package check

import (
	"strings"
	"testing"

	"github.com/barque/barque/internal/history"
	"github.com/barque/barque/raftstore"
)

// TestTheSearchForAnOrder: the operations for package linear have an order when the clients'
// answers are true, and none when they are not. Times are given, so that the sequence is known.
func TestTheSearchForAnOrder(t *testing.T) {
	const a, b, single = "/m/0/a", "/m/0/b", "/s/1"
	item := func(key, value string, revision uint64) history.Item {
		return history.Item{Key: key, Value: value, Created: revision, Revision: revision}
	}
	// A history of single=v1 at 1, a=b=v2 at 2 and single gone at 3.
	known := func() *shown {
		h := newShown()
		h.put("v1", single)
		h.put("v2", a, b)
		h.remove(single)
		h.writes = []*Write{
			{Client: 1, Call: 10, Return: 20, Txn: putting("v1", single), Revision: 1},
			{Client: 1, Call: 30, Return: 40, Txn: putting("v2", a, b), Revision: 2},
			{Client: 1, Call: 50, Return: 60, Txn: deleting(single), Revision: 3},
		}
		return h
	}
	demanding := func(txn raftstore.Txn, key string, revision uint64) raftstore.Txn {
		txn.Require = []raftstore.Precondition{{Key: key, ModRevision: revision}}
		return txn
	}
	conflict := func(current *raftstore.Item) *raftstore.ConflictError {
		return &raftstore.ConflictError{Key: single, Current: current}
	}
	one, current := item(single, "v1", 1),
		raftstore.Item{Key: single, Value: []byte("v1"), CreateRevision: 1, ModRevision: 1}
	for name, c := range map[string]struct {
		write *Write
		read  *Read
		none  bool // no order explains it
	}{
		"nothing else": {},
		"a read of the end": {
			read: &Read{Call: 70, Return: 80, Items: []history.Item{item(a, "v2", 2), item(b, "v2", 2)}}},
		"a read of before that is stale": {
			read: &Read{Call: 70, Return: 80, Items: []history.Item{one, item(a, "v2", 2), item(b, "v2", 2)}},
			none: true},
		"the same, and it was asked stale": {
			read: &Read{Kind: Stale, Call: 70, Return: 80, Items: []history.Item{one}}},
		"a read beside the delete": {
			read: &Read{Call: 55, Return: 80, Items: []history.Item{one, item(a, "v2", 2), item(b, "v2", 2)}}},
		"a read of half of a transaction": {
			read: &Read{Call: 35, Return: 80, Items: []history.Item{item(a, "v2", 2)}}, none: true},
		"a read of nothing after a write": {read: &Read{Call: 70, Return: 80}, none: true},
		"a write that nobody has seen": {
			write: &Write{Call: 61, Return: 65, Txn: putting("v3", single), Revision: 4},
			read:  &Read{Call: 70, Return: 80, Items: []history.Item{item(a, "v2", 2), item(b, "v2", 2)}}, none: true},
		"one that nobody was told of": {
			write: &Write{Call: 61, Return: 65, Txn: putting("v3", single), Outcome: Unknown},
			read:  &Read{Call: 70, Return: 80, Items: []history.Item{item(a, "v2", 2), item(b, "v2", 2)}}},
		"a conflict with what there is not": {
			write: &Write{Call: 61, Return: 65, Txn: demanding(putting("v3", single), single, 1), Outcome: Conflicted,
				Conflict: conflict(nil)}},
		"a conflict with what was there": {
			write: &Write{Call: 61, Return: 65, Txn: demanding(putting("v3", single), single, 0), Outcome: Conflicted,
				Conflict: conflict(&current)}, none: true},
		"a conflict although it holds": {
			write: &Write{Call: 21, Return: 25, Txn: demanding(putting("v3", single), single, 1), Outcome: Conflicted,
				Conflict: conflict(&current)}, none: true},
		"done although it does not hold": {
			write: &Write{Call: 61, Return: 65, Txn: demanding(putting("v3", single), single, 1), Revision: 4},
			none:  true},
		"refused": {
			write: &Write{Call: 61, Return: 65, Txn: putting("v3", single), Outcome: Refused}},
		"a key that expires": {
			write: &Write{Call: 61, Return: 65, Txn: demanding(putting("v3", "/t/1"), "/t/1", 9), Revision: 4}},
	} {
		h := known()
		if c.write != nil {
			h.writes = append(h.writes, c.write)
		}
		if c.read != nil {
			h.reads = append(h.reads, c.read)
		}
		j := newJudge(h.Record, Options{})
		j.All = nil // of the history
		j.ordered()
		if found(j.All, history.Linearizes) != c.none {
			t.Errorf("%s: %v", name, j.All)
		}
	}
}

// TestUnknownThatTookEffect: it has ended when the first server showed it.
func TestUnknownThatTookEffect(t *testing.T) {
	h := newShown()
	h.put("v1", "/s/1")
	h.tap.deliveries[0].At = 50
	h.writes = []*Write{{Client: 1, Call: 10, Return: 20, Txn: putting("v1", "/s/1"), Outcome: Unknown}}
	h.reads = []*Read{{Client: 2, Call: 30, Return: 40}, {Client: 2, Call: 60, Return: 70}}
	j := newJudge(h.Record, Options{})
	j.ordered()
	if len(j.All) != 1 || !strings.Contains(j.All[0].What, "no order") {
		t.Errorf("a read of nothing after it was seen: %v", j.All)
	}
	h.reads = h.reads[:1]
	if got := h.Verdict(Options{}); len(got) != 0 {
		t.Errorf("a read of nothing before it was seen: %v", got)
	}
}

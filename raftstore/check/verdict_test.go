package check

import (
	"testing"

	"github.com/barque/barque/raftstore"
)

// TestADeleteThatFoundNothing: a leader deletes what an earlier one has deleted, of which nobody
// was told. Both may have made the revision, but the second one's term began after it.
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
		tap := r.Watch(&Watch{Tap: true})
		r.Deliver(tap, raftstore.Batch{Revision: 1, Events: []raftstore.Event{{Kind: raftstore.Created, Item: item}}})
		deleted := item
		deleted.ModRevision = 2
		r.Deliver(tap, raftstore.Batch{Revision: 2, Events: []raftstore.Event{{Kind: raftstore.Deleted, Item: deleted, Prev: &item}}})
		r.LedTerm(LedTerm{Term: 4, Revision: 1})
		r.LedTerm(LedTerm{Server: 1, Term: 5, Revision: began})
		r.Write(Write{Client: 3, Server: 1, Call: r.Now(), Txn: gone(5)}, raftstore.Result{Revision: 2}, nil)
		if got := r.Verdict(Options{}); len(got) != 0 {
			t.Errorf("the second term began at revision %d: %v", began, got)
		}
	}
}

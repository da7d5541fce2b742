package mvcc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/barque/barque/raftstore/kv"
)

// model is the store in plain maps, one for each revision.
type model struct {
	at  []map[string]kv.Item // by revision
	log [][]kv.Event         // by revision
}

func newModel() *model { return &model{at: []map[string]kv.Item{{}}, log: [][]kv.Event{nil}} }

func (m *model) apply(txn *kv.Txn, now int64) (uint64, bool) {
	current := m.at[len(m.at)-1]
	revision := uint64(len(m.at))
	for _, p := range txn.Require {
		if current[p.Key].ModRevision != p.ModRevision {
			return revision - 1, false
		}
	}
	next, events := maps.Clone(current), []kv.Event(nil)
	for _, op := range txn.Ops {
		old, existed := current[op.Key]
		prev := &old
		if !existed {
			prev = nil
		}
		switch {
		case op.Kind == kv.Delete && existed:
			delete(next, op.Key)
			gone := old
			gone.ModRevision = revision
			events = append(events, kv.Event{Kind: kv.Deleted, Item: gone, Prev: prev})
		case op.Kind == kv.Put:
			item := kv.Item{Key: op.Key, Value: op.Value, CreateRevision: revision, ModRevision: revision}
			kind := kv.Created
			if existed {
				kind, item.CreateRevision = kv.Modified, old.CreateRevision
			}
			if op.TTL > 0 {
				item.Expires = now + op.TTL.Milliseconds()
			}
			next[op.Key] = item
			events = append(events, kv.Event{Kind: kind, Item: item, Prev: prev})
		}
	}
	if events == nil {
		return revision - 1, true
	}
	m.at, m.log = append(m.at, next), append(m.log, events)
	return revision, true
}

func randomTxn(rnd *rand.Rand, m *model) *kv.Txn {
	key := func() string { return fmt.Sprintf("/%d/%d", rnd.IntN(3), rnd.IntN(20)) }
	txn := new(kv.Txn)
	for range rnd.IntN(2) {
		k := key()
		p := kv.Precondition{Key: k, ModRevision: m.at[len(m.at)-1][k].ModRevision}
		if rnd.IntN(4) == 0 {
			p.ModRevision += uint64(rnd.IntN(2))
		}
		txn.Require = append(txn.Require, p)
	}
	used := map[string]bool{}
	for range rnd.IntN(4) {
		op := kv.Op{Kind: kv.OpKind(1 + rnd.IntN(2)), Key: key()}
		if used[op.Key] {
			continue
		}
		used[op.Key] = true
		if op.Kind == kv.Put {
			op.Value = fmt.Append(nil, rnd.Int())
		}
		txn.Ops = append(txn.Ops, op)
	}
	return txn
}

func equal(a, b kv.Item) bool {
	return a.Key == b.Key && string(a.Value) == string(b.Value) && a.CreateRevision == b.CreateRevision &&
		a.ModRevision == b.ModRevision && a.Expires == b.Expires
}

func checkView(t *testing.T, v *View, want map[string]kv.Item) {
	t.Helper()
	n, last, hash := 0, "", uint64(0)
	v.Ascend("", "", func(item kv.Item) bool {
		if item.Key <= last {
			t.Fatalf("key %q follows %q", item.Key, last)
		}
		if !equal(item, want[item.Key]) {
			t.Fatalf("revision %d: %+v, want %+v", v.Revision(), item, want[item.Key])
		}
		n, last = n+1, item.Key
		hash += hashItem(&item)
		return true
	})
	if n != len(want) || v.Len() != n {
		t.Fatalf("revision %d: %d keys, Len %d, want %d", v.Revision(), n, v.Len(), len(want))
	}
	if hash != v.Hash() {
		t.Fatalf("revision %d: the hash is kept as %x and computes to %x", v.Revision(), v.Hash(), hash)
	}
}

// TestAgainstModel applies random transactions to the store and to plain maps, and compares every
// revision in history, and what watchers of several prefixes see.
func TestAgainstModel(t *testing.T) {
	for round := range 20 {
		rnd := rand.New(rand.NewPCG(7, uint64(round)))
		s, m := New(Limits{PinEvery: uint64(1 + rnd.IntN(20))}), newModel()
		prefixes := []string{"", "/0/", "/1/1", "/2/7"}
		watchers := make([]kv.Watcher, len(prefixes))
		for i, prefix := range prefixes {
			watchers[i], _ = s.Watch(kv.WatchOptions{Prefix: prefix})
		}
		for range 300 {
			txn := randomTxn(rnd, m)
			want, ok := m.apply(txn, 5)
			got, conflict := s.Apply(txn, 5)
			if got != want || (conflict == nil) != ok {
				t.Fatalf("Apply(%+v) = %d, %v; want %d, %t", txn, got, conflict, want, ok)
			}
			if rnd.IntN(3) == 0 {
				s.Publish()
			}
		}
		s.Publish()
		for _, revision := range rnd.Perm(len(m.at)) {
			v, err := s.At(uint64(revision))
			if err != nil {
				t.Fatal(err)
			}
			checkView(t, v, m.at[revision])
			if hash, err := s.HashAt(uint64(revision)); err != nil || hash != v.Hash() {
				t.Fatalf("HashAt(%d) = %x, %v; the picture has %x", revision, hash, err, v.Hash())
			}
		}
		for i, prefix := range prefixes {
			checkWatch(t, watchers[i], m, prefix, 0)
			after := uint64(1 + rnd.IntN(len(m.at)-1))
			late, err := s.Watch(kv.WatchOptions{Prefix: prefix, After: after})
			if err != nil {
				t.Fatal(err)
			}
			checkWatch(t, late, m, prefix, after)
		}
		if n := s.Stats().Watchers; n != 0 || len(s.log.routes) != 0 {
			t.Fatalf("%d watchers and %d routes are left", n, len(s.log.routes))
		}
	}
}

func checkWatch(t *testing.T, w kv.Watcher, m *model, prefix string, after uint64) {
	t.Helper()
	defer w.Close()
	for revision := after + 1; revision < uint64(len(m.log)); revision++ {
		var want []kv.Event
		for _, e := range m.log[revision] {
			if len(e.Item.Key) >= len(prefix) && e.Item.Key[:len(prefix)] == prefix {
				want = append(want, e)
			}
		}
		if len(want) == 0 {
			continue
		}
		b, err := w.Next(context.Background())
		if err != nil || b.Revision != revision || len(b.Events) != len(want) {
			t.Fatalf("watch of %q: %d events at %d, %v; want %d at %d", prefix, len(b.Events), b.Revision, err, len(want), revision)
		}
		for i, e := range b.Events {
			if e.Kind != want[i].Kind || !equal(e.Item, want[i].Item) || (e.Prev == nil) != (want[i].Prev == nil) ||
				e.Prev != nil && !equal(*e.Prev, *want[i].Prev) {
				t.Fatalf("watch of %q at %d: %+v, want %+v", prefix, revision, e, want[i])
			}
		}
	}
	w.RequestProgress()
	b, err := w.Next(context.Background())
	if err != nil || len(b.Events) != 0 || b.Revision != uint64(len(m.log)-1) {
		t.Fatalf("watch of %q: progress %+v, %v", prefix, b, err)
	}
}

func put(s *Store, key string, now int64) uint64 {
	revision, _ := s.Apply(&kv.Txn{Ops: []kv.Op{{Kind: kv.Put, Key: key, Value: make([]byte, 100)}}}, now)
	s.Publish()
	return revision
}

func TestHistoryIsBounded(t *testing.T) {
	for what, limits := range map[string]Limits{
		"bytes": {HistoryBytes: 20_000}, "age": {HistoryAge: 50},
	} {
		s := New(limits)
		idle, _ := s.Watch(kv.WatchOptions{Prefix: "/a"})
		slow, _ := s.Watch(kv.WatchOptions{Prefix: "/b"})
		put(s, "/b", 1)
		for i := range 1000 {
			put(s, "/c", int64(i))
		}
		stats := s.Stats()
		if stats.Compacted < 900 || stats.Compacted >= 1001 || stats.HistoryBytes > 50_000 {
			t.Errorf("%s: history begins after %d and has %d bytes", what, stats.Compacted, stats.HistoryBytes)
		}
		if _, err := s.At(stats.Compacted - 1); !errors.Is(err, kv.ErrCompacted) {
			t.Errorf("%s: a view below history: %v", what, err)
		}
		if _, err := s.At(stats.Compacted); err != nil {
			t.Errorf("%s: the oldest view: %v", what, err)
		}
		if _, err := slow.Next(context.Background()); !errors.Is(err, kv.ErrCompacted) {
			t.Errorf("%s: a watcher that missed an event: %v, want ErrCompacted", what, err)
		}
		revision := put(s, "/a", 1000)
		if b, err := idle.Next(context.Background()); err != nil || b.Revision != revision {
			t.Errorf("%s: a watcher that missed nothing: %v, %v", what, b, err)
		}
		if v, err := s.At(stats.Compacted + 1); err != nil && !errors.Is(err, kv.ErrCompacted) {
			t.Errorf("%s: a view in history: %v, %v", what, v, err)
		}
	}
}

func TestLoadChecksTheHash(t *testing.T) {
	s := New(Limits{})
	put(s, "/a", 1)
	before := s.Latest()
	item := &kv.Item{Key: "/b", CreateRevision: 4, ModRevision: 9}
	items := func(yield func(*kv.Item)) error { yield(item); return nil }
	if err := s.Load(Origin{Revision: 9, Hash: 1}, items); err == nil {
		t.Error("a wrong hash was taken")
	}
	if s.Latest() != before || s.Applied() != 1 {
		t.Error("a refused snapshot changed the state")
	}
	if err := s.Load(Origin{Revision: 9, Hash: hashItem(item)}, items); err != nil {
		t.Fatal(err)
	}
	if got, ok := s.Latest().Get("/b"); !ok || s.Revision() != 9 || !equal(got, *item) {
		t.Errorf("loaded %+v at revision %d", got, s.Revision())
	}
	if revision := put(s, "/c", 1); revision != 10 {
		t.Errorf("the revision goes on with %d", revision)
	}
}

package mvcc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/raftstore/kv"
)

// model is the store in plain maps, one for each revision.
type model struct {
	at  []map[string]kv.Item // by revision
	log [][]kv.Event         // by revision
}

func newModel() *model { return &model{at: []map[string]kv.Item{{}}, log: [][]kv.Event{nil}} }

// size is the size of the items for the limit.
func (m *model) size(items map[string]kv.Item) (bytes int64) {
	for _, item := range items {
		bytes += int64(len(item.Key) + len(item.Value) + 64)
	}
	return bytes
}

type verdict string

const (
	applied  verdict = "applied"
	conflict verdict = "conflict"
	full     verdict = "full"
)

func verdictOf(o Outcome) verdict {
	switch {
	case o.Conflict != nil:
		return conflict
	case o.Full != nil:
		return full
	}
	return applied
}

func (m *model) apply(txn *kv.Txn, now, limit int64) (uint64, verdict) {
	current := m.at[len(m.at)-1]
	revision := uint64(len(m.at))
	for _, p := range txn.Require {
		if current[p.Key].ModRevision != p.ModRevision {
			return revision - 1, conflict
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
	before, after := m.size(current), m.size(next)
	creates := slices.ContainsFunc(events, func(e kv.Event) bool { return e.Kind == kv.Created })
	small := !creates && after-before <= 16<<10 && after <= limit+limit/16
	if limit > 0 && after > before && after > limit && !small {
		return revision - 1, full
	}
	if events == nil {
		return revision - 1, applied
	}
	m.at, m.log = append(m.at, next), append(m.log, events)
	return revision, applied
}

// expire deletes the due keys, the oldest deadlines first.
func (m *model) expire(due int64, limit int) uint64 {
	current := m.at[len(m.at)-1]
	var keys []string
	for key, item := range current {
		if item.Expires != 0 && item.Expires <= due {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(cmp.Compare(current[a].Expires, current[b].Expires), cmp.Compare(a, b))
	})
	txn := &kv.Txn{}
	for _, key := range keys[:min(limit, len(keys))] {
		txn.Ops = append(txn.Ops, kv.Op{Kind: kv.Delete, Key: key})
	}
	revision, _ := m.apply(txn, due, 0)
	return revision
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
			op.Value = make([]byte, rnd.IntN(60))
			for i := range op.Value {
				op.Value[i] = byte(rnd.Int())
			}
			op.TTL = time.Duration(rnd.IntN(3)*rnd.IntN(100)) * time.Millisecond
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
		hash += pack(&item).hash()
		return true
	})
	if err := v.tree.check(); err != nil {
		t.Fatalf("revision %d: %v", v.Revision(), err)
	}
	for _, prefix := range []string{"", "/0", "/0/1", "/1/", "/2/19", "/3", "0"} {
		for _, from := range []string{"", "/0/5", "/1/10x", "/9"} {
			items, bytes := 0, int64(0)
			for key, item := range want {
				if strings.HasPrefix(key, prefix) && key >= from {
					items, bytes = items+1, bytes+int64(len(key)+len(item.Value)+64)
				}
			}
			if n, b := v.Size(prefix, from); n != items || b != bytes || v.Count(prefix, from) != items {
				t.Fatalf("revision %d: Size(%q, %q) = %d, %d; want %d, %d", v.Revision(), prefix, from, n, b, items,
					bytes)
			}
		}
	}
	if n != len(want) || v.Len() != n {
		t.Fatalf("revision %d: %d keys, Len %d, want %d", v.Revision(), n, v.Len(), len(want))
	}
	if hash != v.Hash() {
		t.Fatalf("revision %d: the hash is kept as %x and computes to %x", v.Revision(), v.Hash(), hash)
	}
}

// TestAgainstModel applies random transactions to the store and to plain maps, and compares every
// revision in history, and the batches of watchers of several prefixes. In half of the rounds the
// store is full most of the time. At the end, all of it goes into another store, as with a
// snapshot, and is compared again.
func TestAgainstModel(t *testing.T) {
	seen := map[verdict]int{}
	for round := range 20 {
		rnd := rand.New(rand.NewPCG(7, uint64(round)))
		s, m := New(Limits{PinEvery: uint64(1 + rnd.IntN(20))}), newModel()
		limit := int64(round%2) * 3000
		prefixes := []string{"", "/0/", "/1/1", "/2/7"}
		watchers := make([]kv.Watcher, len(prefixes))
		for i, prefix := range prefixes {
			watchers[i], _ = s.Watch(kv.WatchOptions{Prefix: prefix})
		}
		for now := range int64(400) {
			if rnd.IntN(20) == 0 {
				due, most := now-int64(rnd.IntN(50)), rnd.IntN(5)
				if got, want := s.Expire(due, most, now), m.expire(due, most); got != want {
					t.Fatalf("Expire(%d, %d) = %d, want %d", due, most, got, want)
				}
			}
			txn := randomTxn(rnd, m)
			revision, want := m.apply(txn, now, limit)
			got := s.Apply(txn, now, limit)
			if got.Revision != revision || verdictOf(got) != want {
				t.Fatalf("Apply(%+v) = %+v; want %d, %s", txn, got, revision, want)
			}
			seen[want]++
			if rnd.IntN(3) == 0 {
				s.Publish()
			}
		}
		s.Publish()
		checkHistory(t, rnd, s, m, 0)
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
		copied := New(Limits{PinEvery: uint64(1 + rnd.IntN(20))})
		if err := transfer(s, copied, rnd.IntN(s.Stats().HistoryBytes)); err != nil {
			t.Fatal(err)
		}
		checkHistory(t, rnd, copied, m, copied.Compacted())
		for _, prefix := range prefixes {
			after := max(copied.Compacted(), 1)
			w, err := copied.Watch(kv.WatchOptions{Prefix: prefix, After: after})
			if err != nil {
				t.Fatal(err)
			}
			checkWatch(t, w, m, prefix, after)
		}
	}
	for _, v := range []verdict{applied, conflict, full} {
		if seen[v] < 20 {
			t.Errorf("only %d transactions were %s", seen[v], v)
		}
	}
}

func checkHistory(t *testing.T, rnd *rand.Rand, s *Store, m *model, from uint64) {
	t.Helper()
	for _, revision := range rnd.Perm(len(m.at)) {
		if uint64(revision) < from {
			if _, err := s.At(uint64(revision)); !errors.Is(err, kv.ErrCompacted) {
				t.Fatalf("At(%d): %v, history begins after %d", revision, err, from)
			}
			continue
		}
		v, err := s.At(uint64(revision))
		if err != nil {
			t.Fatal(err)
		}
		checkView(t, v, m.at[revision])
		if hash, err := s.HashAt(uint64(revision)); err != nil || hash != v.Hash() {
			t.Fatalf("HashAt(%d) = %x, %v; the snapshot has %x", revision, hash, err, v.Hash())
		}
	}
}

// transfer loads the content of one store into another.
func transfer(from, to *Store, historyBytes int) error {
	v, history := from.Latest(), from.History(historyBytes)
	return to.Load(Origin{Revision: v.Revision(), Now: from.Now(), Hash: v.Hash()},
		func(yield func(*kv.Item)) error {
			v.Ascend("", "", func(item kv.Item) bool { yield(&item); return true })
			return nil
		},
		func(yield func(kv.Undo) error) (err error) {
			history(func(u kv.Undo) bool { err = yield(u); return err == nil })
			return err
		})
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
			t.Fatalf("watch of %q: %d events at %d, %v; want %d at %d", prefix, len(b.Events), b.Revision, err,
				len(want), revision)
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
	o := s.Apply(&kv.Txn{Ops: []kv.Op{{Kind: kv.Put, Key: key, Value: make([]byte, 100)}}}, now, 0)
	s.Publish()
	return o.Revision
}

func TestHistoryIsBounded(t *testing.T) {
	s := New(Limits{HistoryBytes: 20_000})
	idle, _ := s.Watch(kv.WatchOptions{Prefix: "/a"})
	slow, _ := s.Watch(kv.WatchOptions{Prefix: "/b"})
	put(s, "/b", 1)
	for i := range 1000 {
		put(s, "/c", int64(i))
	}
	stats := s.Stats()
	if stats.Compacted < 900 || stats.Compacted >= 1001 || stats.HistoryBytes > 50_000 {
		t.Errorf("history begins after %d and has %d bytes", stats.Compacted, stats.HistoryBytes)
	}
	if _, err := s.At(stats.Compacted - 1); !errors.Is(err, kv.ErrCompacted) {
		t.Errorf("a view below history: %v", err)
	}
	if _, err := s.At(stats.Compacted); err != nil {
		t.Errorf("the oldest view: %v", err)
	}
	if b, has := slow.Poll(); has {
		t.Errorf("a watcher that missed an event polled %v", b)
	}
	if _, err := slow.Next(context.Background()); !errors.Is(err, kv.ErrCompacted) {
		t.Errorf("a watcher that missed an event: %v, want ErrCompacted", err)
	}
	if expired := s.Stats().Expired; expired != 1 {
		t.Errorf("%d watchers have missed events, want 1", expired)
	}
	revision := put(s, "/a", 1000)
	if b, err := idle.Next(context.Background()); err != nil || b.Revision != revision {
		t.Errorf("a watcher that missed nothing: %v, %v", b, err)
	}
	if v, err := s.At(stats.Compacted + 1); err != nil && !errors.Is(err, kv.ErrCompacted) {
		t.Errorf("a view in history: %v, %v", v, err)
	}
}

func TestLoadChecksTheHash(t *testing.T) {
	s := New(Limits{})
	put(s, "/a", 1)
	before := s.Latest()
	item := &kv.Item{Key: "/b", CreateRevision: 4, ModRevision: 9}
	items := func(yield func(*kv.Item)) error { yield(item); return nil }
	if err := s.Load(Origin{Revision: 9, Hash: 1}, items, nil); err == nil {
		t.Error("a wrong hash was taken")
	}
	if s.Latest() != before || s.Applied() != 1 {
		t.Error("a refused snapshot changed the state")
	}
	if err := s.Load(Origin{Revision: 9, Hash: pack(item).hash()}, items, nil); err != nil {
		t.Fatal(err)
	}
	if got, ok := s.Latest().Get("/b"); !ok || s.Revision() != 9 || !equal(got, *item) {
		t.Errorf("loaded %+v at revision %d", got, s.Revision())
	}
	if revision := put(s, "/c", 1); revision != 10 {
		t.Errorf("the revision goes on with %d", revision)
	}
}

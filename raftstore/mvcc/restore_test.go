package mvcc

import (
	"fmt"
	"maps"
	"testing"
	"unsafe"

	"github.com/barque/barque/raftstore/kv"
)

// oneMemory reports whether both records are the same bytes in memory.
func oneMemory(a, b record) bool {
	return len(a) == len(b) && unsafe.StringData(string(a)) == unsafe.StringData(string(b))
}

// some are items for a restore, of more than one part.
func some(changed ...int) (items []kv.Item) {
	for i := range 30 {
		value := make([]byte, partBytes/10)
		value[0] = byte(i)
		items = append(items, kv.Item{Key: fmt.Sprintf("/%02d", i), Value: value})
	}
	for _, i := range changed {
		items[i].Value[1] = 1
	}
	return items
}

// stage puts the items aside, in two chunks, and returns their totals.
func stage(t *testing.T, s *Store, items []kv.Item) RestoreTotals {
	t.Helper()
	want := RestoreTotals{Seq: 2, Items: uint64(len(items))}
	for i := range items {
		want.Sum += ContentHash(&items[i])
	}
	if err := s.BeginRestore(7, 1); err != nil {
		t.Fatal(err)
	}
	for i, chunk := range [][]kv.Item{items[:12], items[12:]} {
		if err := s.StageItems(7, uint64(i+1), chunk, 1, 0); err != nil {
			t.Fatal(err)
		}
	}
	return want
}

func recordsOf(v *View) map[string]record {
	all := map[string]record{}
	v.tree.ascend("", "", func(r record) bool { all[r.key()] = r; return true })
	return all
}

// TestRestoreSharesWhatIsEqual: an item that the state has already is in memory once, while it
// is put aside and afterwards. The items that were put aside go part by part when they are put
// in place.
func TestRestoreSharesWhatIsEqual(t *testing.T) {
	s := New(Limits{})
	want := stage(t, s, some())
	if _, err := s.CommitRestore(7, want, 0, 1); err != nil {
		t.Fatal(err)
	}
	s.Publish()
	before := recordsOf(s.Latest())
	want = stage(t, s, some(3, 20))
	staging, aside := s.staging, 0
	if len(staging.parts) < 3 {
		t.Fatalf("%d parts", len(staging.parts))
	}
	for _, part := range staging.parts {
		for _, r := range part {
			if !oneMemory(r, before[r.key()]) {
				aside++
			}
		}
	}
	if aside != 2 || staging.Items != 30 || staging.last() != "/29" {
		t.Errorf("%d items of %d are in memory twice, want 2", aside, staging.Items)
	}
	if _, err := s.CommitRestore(7, want, 0, 1); err != nil {
		t.Fatal(err)
	}
	s.Publish()
	after := recordsOf(s.Latest())
	for key, r := range after {
		if oneMemory(r, before[key]) == (key == "/03" || key == "/20") {
			t.Errorf("%s: in one memory %v", key, oneMemory(r, before[key]))
		}
	}
	for i, part := range staging.parts {
		if part != nil {
			t.Errorf("part %d is still there", i)
		}
	}
}

// TestFrozenStaging: a snapshot of a restore has the items that were put aside when it was
// taken, whatever becomes of the restore. Loaded into a store with the same state, it shares
// with that, too.
func TestFrozenStaging(t *testing.T) {
	s := New(Limits{})
	want := stage(t, s, some())
	first := s.FreezeStaging()
	if _, err := s.CommitRestore(7, want, 0, 1); err != nil {
		t.Fatal(err)
	}
	s.Publish()
	if err := s.BeginRestore(8, 1); err != nil {
		t.Fatal(err)
	}
	items := some(3, 20)
	if err := s.StageItems(8, 1, items[:29], 1, 0); err != nil {
		t.Fatal(err)
	}
	second := s.FreezeStaging()
	if err := s.StageItems(8, 2, items[29:], 1, 0); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		frozen *Staging
		want   []kv.Item
	}{"first": {first, some()}, "second": {second, items[:29]}} {
		n := 0
		c.frozen.Ascend(func(item kv.Item) bool {
			if n >= len(c.want) || !equal(item, c.want[n]) {
				t.Errorf("%s: item %d is %q, create %d, mod %d", name, n, item.Key, item.CreateRevision,
					item.ModRevision)
			}
			n++
			return true
		})
		if n != len(c.want) {
			t.Errorf("%s: %d items, want %d", name, n, len(c.want))
		}
	}
	loaded := new(Staging)
	second.Ascend(func(item kv.Item) bool { s.LoadStaged(loaded, &item); return true })
	if loaded.Sum != second.Sum || loaded.Items != second.Items || loaded.Bytes != second.Bytes {
		t.Errorf("loaded %+v, want %+v", loaded, second)
	}
	shared := 0
	for _, part := range loaded.parts {
		for _, r := range part {
			if oneMemory(r, s.work.get(r.key())) {
				shared++
			}
		}
	}
	if shared != 27 {
		t.Errorf("%d loaded items are shared with the state, want 27", shared)
	}
}

// TestLoadSharesWhatIsEqual: a server that is sent a snapshot has most of it in memory already.
func TestLoadSharesWhatIsEqual(t *testing.T) {
	from, to := New(Limits{}), New(Limits{})
	for i := range 10 {
		put(from, fmt.Sprintf("/%d", i), 1)
	}
	if err := transfer(from, to, 0); err != nil {
		t.Fatal(err)
	}
	before := recordsOf(to.Latest())
	put(from, "/3", 2)
	if err := transfer(from, to, 0); err != nil {
		t.Fatal(err)
	}
	after := recordsOf(to.Latest())
	if !maps.Equal(after, recordsOf(from.Latest())) {
		t.Errorf("loaded %d items that differ", len(after))
	}
	for key, r := range after {
		if oneMemory(r, before[key]) == (key == "/3") {
			t.Errorf("%s: in one memory %v", key, oneMemory(r, before[key]))
		}
	}
}

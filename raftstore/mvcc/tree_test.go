package mvcc

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/barque/barque/raftstore/kv"
)

// check verifies everything that the comments of node promise.
func (t tree) check() error {
	if t.root == nil {
		return nil
	}
	depth := 0
	for n := t.root; n.children != nil; n = n.children[0] {
		depth++
	}
	return t.root.check(depth, "", "")
}

// check verifies that the keys below are at or above low and, unless high is empty, under it.
func (n *node) check(depth int, low, high string) error {
	if (n.children == nil) != (depth == 0) {
		return fmt.Errorf("not all leaves are at the same depth")
	}
	want := *n
	want.add()
	if want.sum != n.sum {
		return fmt.Errorf("a node sums up to %v and says %v", want.sum, n.sum)
	}
	if n.width() > fanout || n.children != nil && len(n.bounds) != len(n.children)-1 {
		return fmt.Errorf("a node has %d records, %d children and %d bounds", len(n.records), len(n.children),
			len(n.bounds))
	}
	for i, r := range n.records {
		if key := r.key(); key < low || high != "" && key >= high || i > 0 && n.records[i-1].key() >= key {
			return fmt.Errorf("key %q stands in the wrong place", key)
		}
	}
	for i, c := range n.children {
		l, h := low, high
		if i > 0 {
			l = n.bounds[i-1]
		}
		if i < len(n.bounds) {
			h = n.bounds[i]
		}
		if err := c.check(depth-1, l, h); err != nil {
			return err
		}
	}
	return nil
}

// TestTree grows and shrinks a tree of some depth in several orders, and compares it, and the
// frozen ones from on the way, with maps.
func TestTree(t *testing.T) {
	orders := map[string]func(rnd *rand.Rand, i int) int{
		"ascending":  func(_ *rand.Rand, i int) int { return i },
		"descending": func(_ *rand.Rand, i int) int { return 1<<20 - i },
		"random":     func(rnd *rand.Rand, _ int) int { return rnd.IntN(12_000) },
	}
	for name, order := range orders {
		t.Run(name, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(3, 4))
			tr, m := newTree(), map[string]record{}
			type frozen struct {
				tree tree
				want map[string]record
			}
			var kept []frozen
			for i := range 30_000 {
				key := fmt.Sprintf("k%07d", order(rnd, i))
				if i >= 12_000 { // from here on it shrinks
					key = anyKey(rnd, m, key)
					if got := tr.delete(key); got != m[key] {
						t.Fatalf("delete(%q) = %q, want %q", key, got, m[key])
					}
					delete(m, key)
				} else {
					r := pack(&kv.Item{Key: key, ModRevision: uint64(i), Value: make([]byte, i%7)})
					if old := tr.set(r); old != m[key] {
						t.Fatalf("set(%q) replaced %q, want %q", key, old, m[key])
					}
					m[key] = r
				}
				if i%997 == 0 {
					if i%2 == 0 {
						kept = append(kept, frozen{tr.freeze(), maps.Clone(m)})
					}
					compareTree(t, tr, m)
				}
			}
			if tr.len() != 0 || tr.root != nil {
				t.Errorf("%d records are left", tr.len())
			}
			for _, f := range kept {
				compareTree(t, f.tree, f.want)
			}
		})
	}
}

// TestTreeLosesWholeBranch empties an inner node whose neighbours have become small enough to take
// it in, but only after it was down to its last record: nothing of it is left to be taken in.
func TestTreeLosesWholeBranch(t *testing.T) {
	for _, emptied := range []int{0, 1} {
		tr := newTree()
		key := func(i int) string { return fmt.Sprintf("/%06d", i) }
		for i := range 20_000 {
			tr.set(pack(&kv.Item{Key: key(i)}))
		}
		if tr.root.children[0].children == nil {
			t.Fatal("the tree has fewer than three levels")
		}
		first := tr.root.children[0].sum.records
		branch := [2][2]int{{0, first}, {first, first + tr.root.children[1].sum.records}}
		remove := func(from, to int) {
			for i := from; i < to; i++ {
				if tr.delete(key(i)) == "" {
					t.Fatalf("there is no key %q", key(i))
				}
			}
			if err := tr.check(); err != nil {
				t.Fatalf("branch %d emptied: after the keys %d to %d were deleted: %v", emptied, from, to, err)
			}
		}
		empty, other := branch[emptied], branch[1-emptied]
		remove(empty[0], empty[1]-1)
		remove(other[0], other[0]+(other[1]-other[0])*2/5)
		remove(empty[1]-1, empty[1])
		for i := range 20_000 {
			tr.get(key(i))
			tr.set(pack(&kv.Item{Key: key(i)}))
		}
		if err := tr.check(); err != nil || tr.len() != 20_000 {
			t.Fatalf("%d records, %v", tr.len(), err)
		}
	}
}

// anyKey returns a key of the map, mostly; else the given one.
func anyKey(rnd *rand.Rand, m map[string]record, other string) string {
	if rnd.IntN(10) == 0 {
		return other
	}
	for key := range m {
		return key
	}
	return other
}

func compareTree(t *testing.T, tr tree, want map[string]record) {
	t.Helper()
	if err := tr.check(); err != nil {
		t.Fatal(err)
	}
	keys := slices.Sorted(maps.Keys(want))
	i := 0
	tr.ascend("", "", func(r record) bool {
		if i >= len(keys) || r != want[keys[i]] || tr.get(keys[i]) != r {
			t.Fatalf("record %d is %q", i, r)
		}
		i++
		return true
	})
	if i != len(keys) || tr.len() != i {
		t.Fatalf("%d records were visited, len is %d, want %d", i, tr.len(), len(keys))
	}
	for _, from := range []string{"", "k", "k0003", "k0005999", "k1048000", "l"} {
		at, _ := slices.BinarySearch(keys, from)
		if got := tr.below(from).records; got != at {
			t.Fatalf("%d records are below %q, want %d", got, from, at)
		}
	}
}

func TestRecord(t *testing.T) {
	for _, item := range []kv.Item{
		{Key: "k", Value: []byte{}},
		{Key: "/a/b", Value: []byte("v"), CreateRevision: 5, ModRevision: 1 << 40, Expires: 1_700_000_000_000},
		{Key: string(make([]byte, 4096)), Value: make([]byte, 1<<20), CreateRevision: 1, ModRevision: 1, Expires: -3},
		{Key: "x", Value: []byte{0xff, 0x80}, CreateRevision: 1<<64 - 1, ModRevision: 1<<64 - 1},
	} {
		r := pack(&item)
		if got := r.item(); !equal(got, item) || r.key() != item.Key || r.modRevision() != item.ModRevision ||
			r.createRevision() != item.CreateRevision ||
			r.size() != int64(len(item.Key)+len(item.Value)+kv.ItemOverhead) {
			t.Errorf("%.40q became %.40q", fmt.Sprint(item), fmt.Sprint(got))
		}
	}
}

func TestSuccessor(t *testing.T) {
	for prefix, want := range map[string]string{"a": "b", "a/": "a0", "a\xff": "b", "\xff\xff": "", "": ""} {
		if got, ok := successor(prefix); got != want || ok != (want != "") {
			t.Errorf("successor(%q) = %q, %t", prefix, got, ok)
		}
	}
}

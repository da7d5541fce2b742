package mvcc

import (
	"strings"

	"github.com/tidwall/btree"

	"github.com/barque/barque/raftstore/kv"
)

// tree is a copy-on-write ordered set of items. copy is O(1); after it, the original and the copy
// share all nodes, and whichever is written to first clones the nodes on its way.
//
// Reading is safe from any number of goroutines as long as nobody writes to this very tree; a
// published tree is never written to again.
type tree struct{ b *btree.BTreeG[*kv.Item] }

func newTree() tree {
	less := func(a, b *kv.Item) bool { return a.Key < b.Key }
	return tree{btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})}
}

func (t tree) copy() tree { return tree{t.b.IsoCopy()} }

func (t tree) get(key string) *kv.Item {
	item, _ := t.b.Get(&kv.Item{Key: key})
	return item
}

func (t tree) set(item *kv.Item) { t.b.Set(item) }

func (t tree) delete(key string) { t.b.Delete(&kv.Item{Key: key}) }

func (t tree) len() int { return t.b.Len() }

// ascend visits the items with the prefix that are not below from.
func (t tree) ascend(prefix, from string, fn func(*kv.Item) bool) {
	start := max(prefix, from)
	t.b.Ascend(&kv.Item{Key: start}, func(item *kv.Item) bool {
		return strings.HasPrefix(item.Key, prefix) && fn(item)
	})
}

// deadline is the place of one item in the order of expiry.
type deadline struct {
	at  int64
	key string
}

func newDeadlines() *btree.BTreeG[deadline] {
	less := func(a, b deadline) bool {
		if a.at != b.at {
			return a.at < b.at
		}
		return a.key < b.key
	}
	return btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})
}

package mvcc

import "github.com/barque/barque/raftstore/kv"

// View is an immutable picture of the store. It implements kv.View.
type View struct {
	tree     tree
	revision uint64
	hash     uint64
}

var _ kv.View = (*View)(nil)

// Revision of the picture.
func (v *View) Revision() uint64 { return v.revision }

// Hash of the picture's items, equal on all replicas that have this revision.
func (v *View) Hash() uint64 { return v.hash }

// Len returns the number of keys.
func (v *View) Len() int { return v.tree.len() }

// Get returns the item with the key.
func (v *View) Get(key string) (kv.Item, bool) {
	if item := v.tree.get(key); item != nil {
		return *item, true
	}
	return kv.Item{}, false
}

// Ascend visits the items with the prefix that are not below from, in key order.
func (v *View) Ascend(prefix, from string, fn func(kv.Item) bool) {
	v.tree.ascend(prefix, from, func(item *kv.Item) bool { return fn(*item) })
}

// Count returns how many items Ascend would visit.
func (v *View) Count(prefix, from string) int {
	if prefix == "" && from == "" {
		return v.tree.len()
	}
	n := 0
	v.tree.ascend(prefix, from, func(*kv.Item) bool { n++; return true })
	return n
}

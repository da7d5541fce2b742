package mvcc

import "github.com/barque/barque/raftstore/kv"

// View is an immutable snapshot of the store.
type View struct {
	tree     tree
	revision uint64
	hash     uint64
}

// Revision of the snapshot.
func (v *View) Revision() uint64 { return v.revision }

// Hash of the snapshot's items, equal on all replicas that have this revision.
func (v *View) Hash() uint64 { return v.hash }

// Len returns the number of keys.
func (v *View) Len() int { return v.tree.len() }

// Bytes returns the size of the items for the limit of the store: keys, values, and kv.ItemOverhead
// for each. It is equal on all replicas that have this revision.
func (v *View) Bytes() int64 { return v.tree.sum().bytes }

// Get returns the item with the key.
func (v *View) Get(key string) (kv.Item, bool) {
	if r := v.tree.get(key); r != "" {
		return r.item(), true
	}
	return kv.Item{}, false
}

// Ascend visits the items with the prefix that are not below from, in key order.
func (v *View) Ascend(prefix, from string, fn func(kv.Item) bool) {
	v.tree.ascend(prefix, from, func(r record) bool { return fn(r.item()) })
}

// Count returns how many items Ascend would visit, in time that grows with the logarithm of the
// store.
func (v *View) Count(prefix, from string) int { return v.tree.between(prefix, from).records }

// Size returns how many items Ascend would visit and how many bytes they count, as Bytes does.
func (v *View) Size(prefix, from string) (items int, bytes int64) {
	s := v.tree.between(prefix, from)
	return s.records, s.bytes
}

package mvcc

import (
	"slices"
	"strings"

	"github.com/tidwall/btree"
)

// fanout is how many records a leaf, and how many children an inner node, has at most.
const fanout = 64

// tree is a copy-on-write ordered set of records: a B+ tree whose nodes know how many records, and
// how many bytes of them, are below. So Count is a walk down the tree, and a copy is a pointer.
//
// A frozen tree never changes: reading it is safe from any number of goroutines. The tree that is
// written to has an owner mark of its own. It changes the nodes with its mark in place, and copies
// all others; freezing gives it a new mark.
type tree struct {
	root  *node // nil when empty
	owner *mark // nil when frozen: such a tree is never written to
	// replaced counts the bytes of the nodes that were in the tree when the epoch began and are not
	// any more: the cost of keeping the tree of that moment.
	replaced int
}

// mark says which tree may change a node in place, and since which epoch the node is there.
type mark struct{ epoch uint64 }

// node is a leaf, which has records, or an inner node, which has children. All keys below
// children[i+1] are at or above bounds[i], and all below children[i] are under it. Bounds are
// copies: they keep no record alive.
type node struct {
	owner    *mark
	records  []record
	children []*node
	bounds   []string
	sum      sum
}

// sum has the totals below a node.
type sum struct {
	records int
	bytes   int64 // as record.size counts
}

func newTree() tree { return tree{owner: new(mark)} }

// freeze returns the tree as it is now, for good. Writing goes on in t.
func (t *tree) freeze() tree {
	t.owner = &mark{t.owner.epoch}
	return tree{root: t.root}
}

// begin begins an epoch, and returns the cost of keeping the tree from the begin of the last one.
func (t *tree) begin() (replaced int) {
	replaced, t.replaced = t.replaced, 0
	t.owner = &mark{t.owner.epoch + 1}
	return replaced
}

// thaw returns a tree with the same content that can be written to.
func (t tree) thaw() tree {
	thawed := tree{root: t.root, owner: new(mark)}
	if t.root != nil {
		thawed.owner.epoch = t.root.owner.epoch + 1
	}
	return thawed
}

func (t tree) sum() sum {
	if t.root == nil {
		return sum{}
	}
	return t.root.sum
}

func (t tree) len() int { return t.sum().records }

// get returns the record with the key, or the empty one.
func (t tree) get(key string) record {
	n := t.root
	if n == nil {
		return ""
	}
	for n.children != nil {
		n = n.children[n.child(key)]
	}
	if i, found := n.find(key); found {
		return n.records[i]
	}
	return ""
}

// child returns which child has the key.
func (n *node) child(key string) int {
	low, high := 0, len(n.bounds)
	for low < high {
		middle := int(uint(low+high) >> 1)
		if n.bounds[middle] <= key {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

// find returns where in a leaf the key is, or belongs.
func (n *node) find(key string) (int, bool) {
	low, high := 0, len(n.records)
	for low < high {
		middle := int(uint(low+high) >> 1)
		if n.records[middle].key() < key {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low, low < len(n.records) && n.records[low].key() == key
}

// set puts the record in and returns the one that it replaced.
func (t *tree) set(r record) (old record) {
	if t.root == nil {
		t.root = &node{owner: t.owner, records: []record{r}}
		t.root.sum = sum{1, r.size()}
		return ""
	}
	t.root = t.own(t.root)
	old, right := t.insert(t.root, r)
	if right != nil {
		t.root = &node{
			owner: t.owner, children: []*node{t.root, right}, bounds: []string{bound(t.root, right)},
			sum: sum{t.root.sum.records + right.sum.records, t.root.sum.bytes + right.sum.bytes},
		}
	}
	return old
}

// own returns the node, or a copy of it, that this tree may change.
func (t *tree) own(n *node) *node {
	if n.owner == t.owner {
		return n
	}
	if n.owner.epoch < t.owner.epoch {
		t.replaced += nodeBytes + 8*cap(n.children) + 16*cap(n.records)
	}
	c := *n
	c.owner = t.owner
	if n.children != nil {
		c.children = slices.Clone(n.children)
		c.bounds = slices.Clip(n.bounds) // shared until they change
	} else {
		// A record more than there are: most changes replace one or add one.
		c.records = append(make([]record, 0, len(n.records)+1), n.records...)
	}
	return &c
}

// nodeBytes is the memory of a node beside its slices.
const nodeBytes = 96

// insert puts the record below n, which is this tree's own. When n has become too large it is
// split: its right part is returned.
func (t *tree) insert(n *node, r record) (old record, right *node) {
	key := r.key()
	if n.children == nil {
		i, found := n.find(key)
		if found {
			old, n.records[i] = n.records[i], r
		} else {
			if len(n.records) == cap(n.records) {
				n.records = append(make([]record, 0, len(n.records)+8), n.records...)
			}
			n.records = slices.Insert(n.records, i, r)
			n.sum.records++
		}
		n.sum.bytes += r.size() - old.size()
		if len(n.records) > fanout {
			right = t.split(n, i == len(n.records)-1)
		}
		return old, right
	}
	i := n.child(key)
	child := t.own(n.children[i])
	n.children[i] = child
	old, split := t.insert(child, r)
	if old == "" {
		n.sum.records++
	}
	n.sum.bytes += r.size() - old.size()
	if split != nil {
		n.children = slices.Insert(n.children, i+1, split)
		n.bounds = slices.Insert(slices.Clip(n.bounds), i, bound(child, split))
		if len(n.children) > fanout {
			right = t.split(n, i+1 == len(n.children)-1)
		}
	}
	return old, right
}

// split cuts n in two and returns the right part. A node that grows at its end, as it does when
// keys come in order, is cut near there: it stays rather full.
func (t *tree) split(n *node, atEnd bool) *node {
	right := &node{owner: t.owner}
	if n.children == nil {
		at := cut(len(n.records), atEnd)
		right.records = slices.Clone(n.records[at:])
		n.records = slices.Clone(n.records[:at])
	} else {
		at := cut(len(n.children), atEnd)
		right.children = slices.Clone(n.children[at:])
		right.bounds = slices.Clone(n.bounds[at:])
		n.children = slices.Clone(n.children[:at])
		n.bounds = slices.Clone(n.bounds[:at-1])
	}
	n.add()
	right.add()
	return right
}

func cut(width int, atEnd bool) int {
	if atEnd {
		return width * 7 / 8
	}
	return width / 2
}

// add computes the node's sum anew.
func (n *node) add() {
	n.sum = sum{records: len(n.records)}
	for _, r := range n.records {
		n.sum.bytes += r.size()
	}
	for _, c := range n.children {
		n.sum.records += c.sum.records
		n.sum.bytes += c.sum.bytes
	}
}

// bound returns a short string above all keys below left, and not above any below right.
func bound(left, right *node) string {
	for left.children != nil {
		left = left.children[len(left.children)-1]
	}
	for right.children != nil {
		right = right.children[0]
	}
	low, high := left.records[len(left.records)-1].key(), right.records[0].key()
	common := 0
	for common < len(low) && low[common] == high[common] {
		common++
	}
	return strings.Clone(high[:common+1])
}

// delete takes the record with the key out and returns it; the empty one when there is none.
func (t *tree) delete(key string) record {
	old := t.get(key)
	if old == "" {
		return ""
	}
	t.root = t.own(t.root)
	t.remove(t.root, key, old.size())
	for len(t.root.children) == 1 {
		t.root = t.root.children[0]
	}
	if t.root.sum.records == 0 {
		t.root = nil
	}
	return old
}

// remove takes the record out from below n, which is this tree's own.
func (t *tree) remove(n *node, key string, size int64) {
	n.sum.records--
	n.sum.bytes -= size
	if n.children == nil {
		i, _ := n.find(key)
		n.records = slices.Delete(n.records, i, i+1)
		return
	}
	i := n.child(key)
	child := t.own(n.children[i])
	n.children[i] = child
	t.remove(child, key, size)
	if child.width() >= fanout/4 {
		return
	}
	if child.width() == 0 { // it would bring a neighbour a bound, and nothing that stands behind it
		n.children = slices.Delete(n.children, i, i+1)
		at := max(i-1, 0)
		n.bounds = slices.Delete(slices.Clone(n.bounds), at, min(at+1, len(n.bounds)))
		return
	}
	// Too small: it goes together with a neighbour, if both fit into one node.
	left := max(i-1, 0)
	if left+1 < len(n.children) && n.children[left].width()+n.children[left+1].width() <= fanout*3/4 {
		t.join(n, left)
	}
}

func (n *node) width() int { return len(n.records) + len(n.children) }

// join makes one node of two neighbours.
func (t *tree) join(n *node, left int) {
	a, b := t.own(n.children[left]), n.children[left+1]
	a.records = append(a.records, b.records...)
	if a.children != nil {
		a.bounds = append(append(slices.Clip(a.bounds), n.bounds[left]), b.bounds...)
		a.children = append(a.children, b.children...)
	}
	a.add()
	n.children[left] = a
	n.children = slices.Delete(n.children, left+1, left+2)
	n.bounds = slices.Delete(slices.Clone(n.bounds), left, left+1)
}

// below returns the totals of the keys under the given one.
func (t tree) below(key string) (s sum) {
	n := t.root
	if n == nil {
		return s
	}
	for n.children != nil {
		at := n.child(key)
		for _, c := range n.children[:at] {
			s.records += c.sum.records
			s.bytes += c.sum.bytes
		}
		n = n.children[at]
	}
	at, _ := n.find(key)
	s.records += at
	for _, r := range n.records[:at] {
		s.bytes += r.size()
	}
	return s
}

// between sums up the records with the prefix that are not below from.
func (t tree) between(prefix, from string) sum {
	end := t.sum()
	if next, ok := successor(prefix); ok {
		end = t.below(next)
	}
	begin := t.below(max(prefix, from))
	if end.records <= begin.records {
		return sum{}
	}
	return sum{end.records - begin.records, end.bytes - begin.bytes}
}

// successor returns the first string above all that have the prefix, if there is one.
func successor(prefix string) (string, bool) {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < 0xff {
			return prefix[:i] + string([]byte{prefix[i] + 1}), true
		}
	}
	return "", false
}

// ascend visits the records with the prefix that are not below from.
func (t tree) ascend(prefix, from string, fn func(record) bool) {
	if t.root != nil {
		t.root.ascend(max(prefix, from), prefix, fn)
	}
}

// ascend visits the records from start on; an empty start is the beginning.
func (n *node) ascend(start, prefix string, fn func(record) bool) bool {
	first := 0
	if n.children == nil {
		if start != "" {
			first, _ = n.find(start)
		}
		records := n.records[first:]
		if len(records) > 0 && strings.HasPrefix(records[len(records)-1].key(), prefix) {
			prefix = "" // so have all before it
		}
		for _, r := range records {
			if prefix != "" && !strings.HasPrefix(r.key(), prefix) || !fn(r) {
				return false
			}
		}
		return true
	}
	if start != "" {
		first = n.child(start)
	}
	for i, c := range n.children[first:] {
		if i > 0 {
			start = ""
		}
		if !c.ascend(start, prefix, fn) {
			return false
		}
	}
	return true
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

package mvcc

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/barque/barque/raftstore/kv"
)

// hashItem returns the item's share of the state hash. The state hash is the sum of all shares,
// so it follows each change at the cost of the items changed, does not depend on the order in
// which they came, and can be computed anew from a snapshot.
func hashItem(item *kv.Item) uint64 {
	var head [32]byte
	binary.LittleEndian.PutUint64(head[0:], uint64(len(item.Key)))
	binary.LittleEndian.PutUint64(head[8:], item.CreateRevision)
	binary.LittleEndian.PutUint64(head[16:], item.ModRevision)
	binary.LittleEndian.PutUint64(head[24:], uint64(item.Expires))
	var d xxhash.Digest
	d.Reset()
	d.Write(head[:])
	d.WriteString(item.Key)
	d.Write(item.Value)
	return d.Sum64()
}

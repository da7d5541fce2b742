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

// Hash returns the item's share of the state hash, for those who compute it over a snapshot without
// making a state of it.
func Hash(item *kv.Item) uint64 { return hashItem(item) }

// ContentHash returns the item's share of the sum over the contents of a restore: it knows no revisions,
// which a restored item does not have yet.
func ContentHash(item *kv.Item) uint64 {
	content := *item
	content.CreateRevision, content.ModRevision = 0, 0
	return hashItem(&content)
}

// HashAt returns the hash of the picture at exactly the revision, without making the picture. It fails as
// At does.
func (s *Store) HashAt(revision uint64) (uint64, error) {
	s.log.mu.RLock()
	from, undo, err := s.log.undo(revision, s.Latest())
	s.log.mu.RUnlock()
	if err != nil {
		return 0, err
	}
	hash := from.hash
	for _, e := range undo {
		for i := range e.events {
			if ev := &e.events[i]; ev.Kind != kv.Deleted {
				hash -= hashItem(&ev.Item)
			}
			if prev := e.events[i].Prev; prev != nil {
				hash += hashItem(prev)
			}
		}
	}
	return hash, nil
}

package mvcc

import (
	"encoding/binary"
	"strings"
	"unsafe"

	"github.com/cespare/xxhash/v2"

	"github.com/barque/barque/raftstore/kv"
)

// record is one version of one item, packed into one immutable string:
//
//	uvarint length of the key, key, uvarint create revision, uvarint modifications since,
//	varint expiry, value
//
// A million items are a million small objects without a pointer in them, which costs the collector
// little and memory some twenty bytes an item. Nothing else is kept alive by a record: not the log
// entry that it came with, nor the version before it. The empty record stands for no item.
//
// The state hash is made of this layout, so that it must not change without a new version of
// snapshots.
type record string

func pack(item *kv.Item) record {
	var head [binary.MaxVarintLen64]byte
	var meta [3 * binary.MaxVarintLen64]byte
	h := binary.PutUvarint(head[:], uint64(len(item.Key)))
	m := binary.PutUvarint(meta[:], item.CreateRevision)
	m += binary.PutUvarint(meta[m:], item.ModRevision-item.CreateRevision)
	m += binary.PutVarint(meta[m:], item.Expires)
	var b strings.Builder
	b.Grow(h + len(item.Key) + m + len(item.Value))
	b.Write(head[:h])
	b.WriteString(item.Key)
	b.Write(meta[:m])
	b.Write(item.Value)
	return record(b.String())
}

// split returns the key and the rest of the record.
func (r record) split() (key, rest string) {
	n, size := uint64(r[0]), 1
	if n >= 0x80 {
		n, size = uvarint(string(r))
	}
	end := size + int(n)
	return string(r[size:end]), string(r[end:])
}

func (r record) key() string {
	key, _ := r.split()
	return key
}

// item unpacks the record. Key and value share memory with it.
func (r record) item() kv.Item {
	key, rest := r.split()
	create, n := uvarint(rest)
	since, m := uvarint(rest[n:])
	expires, k := uvarint(rest[n+m:])
	item := kv.Item{Key: key, CreateRevision: create, ModRevision: create + since}
	item.Expires = int64(expires>>1) ^ -int64(expires&1)
	// The value of an Item must not be changed, so it need not be copied.
	value := rest[n+m+k:]
	item.Value = unsafe.Slice(unsafe.StringData(value), len(value))
	if len(value) == 0 {
		item.Value = []byte{}
	}
	return item
}

func (r record) createRevision() uint64 {
	_, rest := r.split()
	create, _ := uvarint(rest)
	return create
}

func (r record) expires() int64 { return r.item().Expires }

func (r record) modRevision() uint64 {
	_, rest := r.split()
	create, n := uvarint(rest)
	since, _ := uvarint(rest[n:])
	return create + since
}

// size is the size of the item for the limit of the store: the same on all replicas.
func (r record) size() int64 {
	if r == "" {
		return 0
	}
	key, rest := r.split()
	_, n := uvarint(rest)
	_, m := uvarint(rest[n:])
	_, k := uvarint(rest[n+m:])
	return int64(len(key) + len(rest) - n - m - k + kv.ItemOverhead)
}

// hash returns the item's share of the state hash. The state hash is the sum of all shares, so it
// follows each change at the cost of the items changed, does not depend on the order in which they
// came, and can be computed anew from a snapshot.
func (r record) hash() uint64 {
	if r == "" {
		return 0
	}
	return xxhash.Sum64String(string(r))
}

// Hash returns the item's share of the state hash, for callers that compute it over a snapshot
// without making a state of it.
func Hash(item *kv.Item) uint64 { return pack(item).hash() }

// ContentHash returns the item's share of the sum over the contents of a restore: it knows no
// revisions, which a restored item does not have yet.
func ContentHash(item *kv.Item) uint64 {
	content := *item
	content.CreateRevision, content.ModRevision = 0, 0
	return Hash(&content)
}

// uvarint is binary.Uvarint for strings that pack has made.
func uvarint(s string) (v uint64, n int) {
	for shift := uint(0); ; shift += 7 {
		b := s[n]
		n++
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v, n
		}
	}
}

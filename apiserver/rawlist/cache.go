package rawlist

import (
	"hash/maphash"
	"sync"

	"github.com/barque/barque/internal/generations"
)

const (
	// shards are few, so that one has room for an object of any size that is stored: of 32 MiB, a
	// shard takes objects of up to 2 MiB, half of its room.
	shards = 8
	// entryCost is the memory of an entry beside its bytes, rounded up. BenchmarkEntryCost
	// measures it.
	entryCost = 128
)

// Cache has the encoding of object revisions as it is sent, or the fact that it equals the stored
// bytes. It is bounded by bytes. The least recently used entries are dropped first, more or less.
// Any goroutine may use it.
//
// An object that is larger than half of a shard is not kept, and so is encoded for each list that
// has it.
type Cache struct {
	seed   maphash.Seed
	bound  int // the most that one List may hold
	shards [shards]shard
}

type shard struct {
	mu      sync.Mutex
	entries *generations.Map[entry, []byte]
}

// entry names a revision of an object in an encoding. The key is a hash of the object's key and of
// the kind of list that it is in.
type entry struct {
	key, revision uint64
	encoding      Encoding
}

// NewCache makes a Cache that takes so many bytes at the most.
func NewCache(bytes int) *Cache {
	c := &Cache{seed: maphash.MakeSeed(), bound: bytes / 2}
	for i := range c.shards {
		c.shards[i].entries = generations.New[entry, []byte](bytes / shards)
	}
	return c
}

// Age begins a new generation, and drops entries that were not used in the last one. A server with
// little load would keep the last lists for ever.
func (c *Cache) Age() {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		s.entries.Age()
		s.mu.Unlock()
	}
}

func (c *Cache) hash(key string) uint64 { return maphash.String(c.seed, key) }

// get returns the bytes to send, nil for the stored bytes.
func (c *Cache) get(e entry) (data []byte, known bool) {
	s := &c.shards[(e.key^e.revision)%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries.Get(e)
}

// put notes the bytes to send, nil for the stored bytes.
func (c *Cache) put(e entry, data []byte) {
	s := &c.shards[(e.key^e.revision)%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries.Put(e, data, entryCost+len(data))
}

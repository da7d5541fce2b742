package rawlist

import (
	"hash/maphash"
	"sync"
)

const (
	// shards are few, so that one has room for an object of any size that is stored: of 32 MiB, a
	// generation of a shard takes objects of up to 2 MiB.
	shards = 8
	// entryCost is what an entry takes beside its bytes, rounded up.
	entryCost = 96
)

// Cache remembers what was found out about revisions of objects: that the stored bytes are what is
// sent, or else what is. It is bounded by bytes. What was not looked at for longest is forgotten
// first, more or less: each shard has two generations, and drops the old one when the young one has
// half of its room. Any goroutine may use it.
//
// An object that is larger than a generation of a shard is not kept. It would push out everything
// else there, and so is encoded for each list that has it.
type Cache struct {
	seed   maphash.Seed
	room   int // of a generation of a shard
	bound  int // of what one List may hold
	shards [shards]shard
}

type shard struct {
	mu         sync.Mutex
	young, old map[entry][]byte
	size       int // of young
}

// entry names a revision of an object in an encoding. The key is a hash of the object's key and of
// the kind of list that it is in.
type entry struct {
	key, revision uint64
	encoding      Encoding
}

// NewCache makes a Cache that takes so many bytes at the most.
func NewCache(bytes int) *Cache {
	c := &Cache{seed: maphash.MakeSeed(), room: bytes / shards / 2, bound: bytes / 2}
	for i := range c.shards {
		c.shards[i].young = make(map[entry][]byte)
	}
	return c
}

// Age forgets what nobody has looked at since Age was called before. A server that has little to do
// would keep the last lists for ever.
func (c *Cache) Age() {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		s.turn()
		s.mu.Unlock()
	}
}

// turn begins a new generation. The caller holds the lock.
func (s *shard) turn() { s.old, s.young, s.size = s.young, make(map[entry][]byte), 0 }

func (c *Cache) hash(key string) uint64 { return maphash.String(c.seed, key) }

// get returns what is sent, nil for the stored bytes.
func (c *Cache) get(e entry) (data []byte, known bool) {
	s := &c.shards[(e.key^e.revision)%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if data, known = s.young[e]; known {
		return data, true
	}
	if data, known = s.old[e]; known {
		s.put(e, data, c.room)
	}
	return data, known
}

// put notes what is sent, nil for the stored bytes.
func (c *Cache) put(e entry, data []byte) {
	s := &c.shards[(e.key^e.revision)%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(e, data, c.room)
}

func (s *shard) put(e entry, data []byte, room int) {
	cost := entryCost + len(data)
	if cost > room {
		return
	}
	if s.size+cost > room {
		s.turn()
	}
	s.young[e] = data
	s.size += cost
}

package objectcache

import (
	"bytes"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
)

const (
	shards = 16
	// objectCost is what an Object takes beside the object itself, rounded up.
	objectCost = 256
	// decodedFactor is how many times larger an object is in memory than its stored bytes, about.
	// BenchmarkDecodedSize measures it for common kinds.
	decodedFactor = 3
)

// Cache has the decoded objects of a server. What was not asked for longest is forgotten first,
// more or less: each shard has two generations, and drops the old one when the young one has half
// of its room. Any goroutine may use it.
type Cache struct {
	seed   maphash.Seed
	room   int // of a generation of a shard, in bytes
	spaces atomic.Uint64
	counts counted
	shards [shards]shard
}

type shard struct {
	mu         sync.Mutex
	young, old map[entry]*Object
	size       int // of young, in bytes
	room       int // of a generation, in bytes
}

// entry names a revision of an object of a Space.
type entry struct{ key, revision uint64 }

// New makes a Cache that takes about so many bytes at the most.
func New(bytes int) *Cache {
	c := &Cache{seed: maphash.MakeSeed(), room: bytes / shards / 2, counts: register()}
	for i := range c.shards {
		c.shards[i].young, c.shards[i].room = make(map[entry]*Object), c.room
	}
	return c
}

// Age forgets what nobody has asked for since Age was called before. A server that has little to do
// would keep its last objects for ever.
func (c *Cache) Age() {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		s.turn()
		s.mu.Unlock()
	}
}

// Space is the part of a Cache that is for the objects of one storage. Two storages may decode the
// same bytes to different types.
type Space struct {
	cache *Cache
	salt  uint64
}

// Space returns a new one.
func (c *Cache) Space() *Space {
	var id [8]byte
	for i, n := 0, c.spaces.Add(1); i < len(id); i, n = i+1, n>>8 {
		id[i] = byte(n)
	}
	return &Space{cache: c, salt: maphash.Bytes(c.seed, id[:])}
}

// Stored is what the store has of an object: bytes that never change.
type Stored struct {
	Key      string
	Value    []byte
	Revision uint64
}

func (s *Space) entry(of Stored) (entry, *shard) {
	e := entry{maphash.String(s.cache.seed, of.Key) ^ s.salt, of.Revision}
	return e, &s.cache.shards[(e.key^e.revision)%shards]
}

// Peek returns the object that was decoded from stored bytes, nil if the cache does not have it.
func (s *Space) Peek(of Stored) *Object {
	e, shard := s.entry(of)
	shard.mu.Lock()
	o := shard.find(e, of.Value)
	shard.mu.Unlock()
	if o == nil || !o.decoded.Load() {
		return nil // whoever decodes it counts that
	}
	s.cache.counts.hits.Inc()
	return o
}

// Decode makes an object of stored bytes.
type Decode func(Stored) (runtime.Object, error)

// Get returns the object that stored bytes decode to. Of those that want it at the same time one
// decodes it. decode is not kept longer than that.
func (s *Space) Get(of Stored, decode Decode) (*Object, error) {
	e, shard := s.entry(of)
	shard.mu.Lock()
	o := shard.find(e, of.Value)
	if o == nil {
		o = &Object{shard: shard, counts: &s.cache.counts, entry: e, stored: of, decode: decode, counted: true}
		o.cost = objectCost + decodedFactor*len(of.Value)
		shard.put(o)
	}
	shard.mu.Unlock()
	if _, err := o.Decoded(); err != nil {
		return nil, err
	}
	return o, nil
}

// Defer returns the object of stored bytes, which are decoded when somebody asks for what they
// decode to. In the forms that the encoder knows, nobody does. Both decode and encoder are kept
// that long, perhaps as long as the object, and must know of no request.
func (s *Space) Defer(of Stored, decode Decode, encoder Encoder) *Object {
	e, shard := s.entry(of)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	o := shard.find(e, of.Value)
	if o == nil {
		o = &Object{shard: shard, counts: &s.cache.counts, entry: e, stored: of, decode: decode, encoder: encoder}
		o.cost = objectCost + len(of.Value) // which may be gone from the store
		shard.put(o)
	}
	return o
}

// Alone returns an object as Defer does, which is in no cache: for one who asks.
func Alone(of Stored, decode Decode, encoder Encoder) *Object {
	return &Object{stored: of, decode: decode, encoder: encoder}
}

// Fits tells whether the cache has room for so many stored bytes more than once over. A list of
// more would push out what others need, and be gone itself before it is asked for again.
func (s *Space) Fits(stored int) bool { return decodedFactor*stored <= s.cache.room*shards/2 }

// errUnfinished is the outcome of a decoding or an encoding that panicked, for others who waited.
var errUnfinished = errors.New("the object could not be read: the one who decoded or encoded it has failed")

// find returns the object of the entry that was decoded from the value. The caller holds the lock.
func (s *shard) find(e entry, value []byte) *Object {
	o, young := s.young[e]
	if !young {
		if o = s.old[e]; o == nil {
			return nil
		}
	}
	if !bytes.Equal(o.stored.Value, value) { // which is quick for what is the same in memory
		s.remove(o)
		return nil
	}
	if !young {
		delete(s.old, e)
		s.put(o)
	}
	return o
}

// put adds an object to the young generation. One that is larger than a generation is not kept. The
// caller holds the lock.
func (s *shard) put(o *Object) {
	if o.cost > s.room {
		return
	}
	if s.size+o.cost > s.room {
		s.turn()
	}
	s.young[o.entry] = o
	s.size += o.cost
}

// turn begins a new generation. The caller holds the lock.
func (s *shard) turn() { s.old, s.young, s.size = s.young, make(map[entry]*Object), 0 }

// remove takes out an object. The caller holds the lock.
func (s *shard) remove(o *Object) {
	if s.young[o.entry] == o {
		delete(s.young, o.entry)
		s.size -= o.cost
	} else if s.old[o.entry] == o {
		delete(s.old, o.entry)
	}
}

// grow counts so many bytes more for an object, which may begin a new generation. One that has
// become larger than a generation is not kept.
func (s *shard) grow(o *Object, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.young[o.entry] == o || s.old[o.entry] == o
	if kept {
		s.remove(o)
	}
	o.cost += n
	if kept {
		s.put(o)
	}
}

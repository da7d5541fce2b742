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
}

// entry names a revision of an object of a Space.
type entry struct{ key, revision uint64 }

// New makes a Cache that takes about so many bytes at the most.
func New(bytes int) *Cache {
	c := &Cache{seed: maphash.MakeSeed(), room: bytes / shards / 2, counts: register()}
	for i := range c.shards {
		c.shards[i].young = make(map[entry]*Object)
	}
	return c
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
	o := shard.find(e, of.Value, s.cache.room)
	shard.mu.Unlock()
	if o == nil || !o.decoded.Load() {
		return nil // whoever decodes it counts that
	}
	s.cache.counts.hits.Inc()
	return o
}

// Get returns the object that stored bytes decode to. Of those that want it at the same time one
// decodes it.
func (s *Space) Get(of Stored, decode func(Stored) (runtime.Object, error)) (*Object, error) {
	e, shard := s.entry(of)
	shard.mu.Lock()
	o := shard.find(e, of.Value, s.cache.room)
	if o != nil {
		s.cache.counts.hits.Inc()
	} else {
		s.cache.counts.misses.Inc()
		o = &Object{shard: shard, entry: e, stored: of.Value, cost: objectCost + decodedFactor*len(of.Value)}
		shard.put(o, s.cache.room)
	}
	shard.mu.Unlock()
	o.once.Do(func() {
		o.err = errUnfinished // when decode panics
		defer func() {
			if o.err == nil {
				o.decoded.Store(true)
				return
			}
			// The next one may fare better: keys of encryption come and go.
			shard.mu.Lock()
			shard.remove(o)
			shard.mu.Unlock()
		}()
		o.object, o.err = decode(of)
	})
	if o.err != nil {
		return nil, o.err
	}
	return o, nil
}

// Fits tells whether the cache has room for so many stored bytes more than once over. A list of
// more would push out what others need, and be gone itself before it is asked for again.
func (s *Space) Fits(stored int) bool { return decodedFactor*stored <= s.cache.room*shards/2 }

// errUnfinished is the outcome of a decoding or an encoding that panicked, for others who waited.
var errUnfinished = errors.New("the object could not be read: the one who decoded or encoded it has failed")

// find returns the object of the entry that was decoded from the value. The caller holds the lock.
func (s *shard) find(e entry, value []byte, room int) *Object {
	o, young := s.young[e]
	if !young {
		if o = s.old[e]; o == nil {
			return nil
		}
	}
	if !bytes.Equal(o.stored, value) { // which is quick for what is the same in memory
		s.remove(o)
		return nil
	}
	if !young {
		delete(s.old, e)
		s.put(o, room)
	}
	return o
}

// put adds an object to the young generation. One that is larger than a generation is not kept. The
// caller holds the lock.
func (s *shard) put(o *Object, room int) {
	if o.cost > room {
		return
	}
	if s.size+o.cost > room {
		s.old, s.young, s.size = s.young, make(map[entry]*Object), 0
	}
	s.young[o.entry] = o
	s.size += o.cost
}

// remove takes out an object. The caller holds the lock.
func (s *shard) remove(o *Object) {
	if s.young[o.entry] == o {
		delete(s.young, o.entry)
		s.size -= o.cost
	} else if s.old[o.entry] == o {
		delete(s.old, o.entry)
	}
}

// grow counts so many bytes more for an object.
func (s *shard) grow(o *Object, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.cost += n
	if s.young[o.entry] == o {
		s.size += n
	}
}

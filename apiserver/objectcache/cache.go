package objectcache

import (
	"bytes"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/barque/barque/internal/generations"
)

// DefaultSize is how many bytes of decoded objects a server keeps, unless it is configured.
const DefaultSize = 64 << 20

const (
	shards = 16
	// objectCost is the memory of an Object beside the object itself, rounded up.
	// BenchmarkObjectCost measures it.
	objectCost = 320
	// encodingCost is the memory of an encoding beside its bytes, with its form.
	encodingCost = 128
	// decodedFactor is how many times larger an object is in memory than its stored bytes, about.
	// BenchmarkDecodedSize measures it for common kinds.
	decodedFactor = 3
)

// Cache has the decoded objects of a server. The least recently used objects are dropped first,
// more or less. Any goroutine may use it.
type Cache struct {
	seed   maphash.Seed
	room   int // in bytes
	spaces atomic.Uint64
	counts counted
	shards [shards]shard
}

type shard struct {
	mu      sync.Mutex
	objects *generations.Map[entry, *Object]
}

// entry names a revision of an object of a Space.
type entry struct{ key, revision uint64 }

// New makes a Cache that takes about so many bytes at the most.
func New(bytes int) *Cache {
	c := &Cache{seed: maphash.MakeSeed(), room: bytes, counts: register()}
	for i := range c.shards {
		c.shards[i].objects = generations.New[entry, *Object](bytes / shards)
	}
	return c
}

// Age begins a new generation, and drops objects that were not used in the last one. A server with
// little load would keep its last objects for ever.
func (c *Cache) Age() {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		s.objects.Age()
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

// Stored is the stored form of an object: bytes that never change.
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
		return nil // the decoding caller counts that
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
		o = &Object{
			shard: shard, counts: &s.cache.counts, entry: e, stored: of, decode: decode, counted: true,
		}
		o.cost = objectCost + decodedFactor*len(of.Value)
		shard.objects.Put(e, o, o.cost)
	}
	shard.mu.Unlock()
	if _, err := o.Decoded(); err != nil {
		return nil, err
	}
	return o, nil
}

// Defer returns the object of stored bytes, which are decoded at the first use of the decoded form.
// The encoder's own forms never need it. Both decode and encoder are kept that long, perhaps as
// long as the object, and must not refer to a request.
func (s *Space) Defer(of Stored, decode Decode, encoder Encoder) *Object {
	e, shard := s.entry(of)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	o := shard.find(e, of.Value)
	if o == nil {
		o = &Object{
			shard: shard, counts: &s.cache.counts, entry: e, stored: of, decode: decode, encoder: encoder,
		}
		o.cost = objectCost + len(of.Value) // which may be gone from the store
		shard.objects.Put(e, o, o.cost)
	}
	return o
}

// Alone returns an object as Defer does, which is in no cache: for a single caller.
func Alone(of Stored, decode Decode, encoder Encoder) *Object {
	return &Object{stored: of, decode: decode, encoder: encoder}
}

// Fits reports whether the cache has room for so many stored bytes more than once over. A larger
// list would push out the objects of other clients, and be gone itself before its next use.
func (s *Space) Fits(stored int) bool { return decodedFactor*stored <= s.cache.room/4 }

// errUnfinished is the outcome of a decoding or an encoding that panicked, for waiting callers.
var errUnfinished = errors.New("the object could not be read: the one who decoded or encoded it has failed")

// find returns the object of the entry that was decoded from the value. The caller holds the lock.
func (s *shard) find(e entry, value []byte) *Object {
	o, found := s.objects.Get(e)
	if found && !bytes.Equal(o.stored.Value, value) { // which is quick if both are the same memory
		s.objects.Remove(e)
		return nil
	}
	return o
}

// has reports whether the object is still kept. The caller holds the lock.
func (s *shard) has(o *Object) bool {
	kept, _ := s.objects.Peek(o.entry)
	return kept == o
}

// remove takes out an object.
func (s *shard) remove(o *Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.has(o) {
		s.objects.Remove(o.entry)
	}
}

// grow counts so many bytes more for an object. One that has become too large is not kept.
func (s *shard) grow(o *Object, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.cost += n
	if s.has(o) {
		s.objects.Put(o.entry, o, o.cost)
	}
}

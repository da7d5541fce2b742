// Package podparts lets the pods of informers share their common parts.
//
// Pods are most of an informer's memory, and most pods are made from a template: those of one
// Deployment differ in their names, their node, the volume of their token and some of their status.
// Decoded, each has its own copy of the rest, hundreds of small objects that take memory and that
// the garbage collector visits each time. A [Sharer] gives it the copy of a pod that came before.
//
// Shared parts are only read, as is everything that an informer has. There is one exception, in a
// library, and so one kind of spec that is not shared: see shareSpec.
package podparts

import (
	"hash/maphash"
	"slices"
	"sync"
	"unsafe"

	"github.com/barque/barque/internal/generations"
)

const (
	// partCost is the memory of a part beside its encoding and its decoded form, rounded up.
	partCost = 128
	// decodedFactor is the size of a part's decoded form relative to its encoding, about.
	decodedFactor = 4
)

// Sharer knows the parts of the pods that came last. Any goroutine may use it.
//
// It is bounded by bytes. The least recently found parts are dropped first, more or less. Pods keep
// their parts nevertheless.
type Sharer struct {
	seed maphash.Seed

	mu     sync.Mutex
	parts  *generations.Map[uint64, part] // by the hashes of their encodings
	common scratch
	buffer []byte
}

// part is a common part of some pods.
type part struct {
	encoding string // with its kind before it
	value    any    // a pointer; nil for a text, which is in the encoding
}

// New makes a Sharer that takes about so many bytes at the most.
func New(bytes int) *Sharer {
	return &Sharer{seed: maphash.MakeSeed(), parts: generations.New[uint64, part](bytes)}
}

// kind distinguishes parts of different types whose encodings are the same.
type kind byte

const (
	textPart kind = iota
	metaPart
	specPart
	affinityPart
	containerPart
	mountPart
	volumePart
	statusPart
	containerStatusPart
	conditionPart
)

// message is a message of Protocol Buffers, whose encodings are the same for equal messages.
type message interface {
	Size() int
	MarshalToSizedBuffer(data []byte) (int, error)
}

// find returns a part of another pod that is equal to common, or else common itself, of which it
// keeps a copy for others. The caller holds the lock.
func find[T any, M interface {
	*T
	message
}](s *Sharer, k kind, common M) M {
	size := common.Size()
	s.buffer = slices.Grow(s.buffer[:0], 1+size)[:1+size]
	s.buffer[0] = byte(k)
	if _, err := common.MarshalToSizedBuffer(s.buffer[1:]); err != nil {
		return common // it shares nothing, which is no harm
	}
	hash, found := s.look()
	if found.value == nil {
		kept := M(new(T))
		*kept = *common
		found = part{string(s.buffer), kept}
		cost := partCost + len(found.encoding) + int(unsafe.Sizeof(*common)) + decodedFactor*size
		s.parts.Put(hash, found, cost)
	}
	return found.value.(M)
}

// text returns a text that is equal. The caller holds the lock.
func (s *Sharer) text(own string) string {
	s.buffer = append(append(s.buffer[:0], byte(textPart)), own...)
	hash, found := s.look()
	if found.encoding == "" {
		found.encoding = string(s.buffer)
		s.parts.Put(hash, found, partCost+len(found.encoding))
	}
	return found.encoding[1:]
}

// look returns the part that has the encoding in the buffer, an empty one if none does. A part with
// another encoding and the same hash gives way to the next one that is put. The caller holds the
// lock.
func (s *Sharer) look() (hash uint64, found part) {
	hash = maphash.Bytes(s.seed, s.buffer)
	if found, _ = s.parts.Get(hash); found.encoding != string(s.buffer) {
		return hash, part{}
	}
	return hash, found
}

// Package podparts lets the pods that informers keep share what they have in common.
//
// Pods are most of what informers keep, and most pods are made from a template: those of one
// Deployment differ in their names, their node, the volume of their token and some of their status.
// Decoded, each has its own copy of the rest, hundreds of small objects that take memory and that
// the garbage collector visits each time. A [Sharer] gives it the copy of a pod that came before.
//
// What is shared is only read, as is everything that an informer has. There is one exception, in a
// library, and so one kind of spec that is not shared: see shareSpec.
package podparts

import (
	"slices"
	"sync"
	"unsafe"
)

const (
	// partCost is what a part takes beside its encoding and what is decoded, rounded up.
	partCost = 128
	// decodedFactor is how many times larger than its encoding is what a part refers to, about.
	decodedFactor = 4
)

// Sharer knows the parts of the pods that came last. Any goroutine may use it.
//
// It is bounded by bytes. What was not found for longest is forgotten first, more or less: there
// are two generations, and the old one goes when the young one has half of the room. Pods keep
// their parts all the same.
type Sharer struct {
	room int // of a generation, in bytes

	mu         sync.Mutex
	young, old map[string]any // pointers to parts, by their encoding; see find
	size       int            // of young, in bytes
	common     scratch
	buffer     []byte
}

// New makes a Sharer that takes about so many bytes at the most.
func New(bytes int) *Sharer { return &Sharer{room: bytes / 2, young: make(map[string]any)} }

// kind tells parts of different types apart whose encodings are the same.
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

// message is what Protocol Buffers encode, equal ones in the same way.
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
	found, young := s.look()
	if found == nil {
		kept := M(new(T))
		*kept = *common
		found = kept
	}
	if !young {
		s.put(string(s.buffer), found, int(unsafe.Sizeof(*common))+decodedFactor*size)
	}
	return found.(M)
}

// text returns a text that is equal. The caller holds the lock.
func (s *Sharer) text(own string) string {
	s.buffer = append(append(s.buffer[:0], byte(textPart)), own...)
	found, young := s.look()
	if young {
		return found.(string)
	}
	encoding := string(s.buffer)
	if found == nil {
		found = encoding[1:]
	}
	s.put(encoding, found, 0)
	return found.(string)
}

// look returns what has the encoding in the buffer, nil if nothing does, and whether that is of the
// young generation. The caller holds the lock.
func (s *Sharer) look() (found any, young bool) {
	if found, young = s.young[string(s.buffer)]; young {
		return found, true
	}
	return s.old[string(s.buffer)], false
}

// put adds a part, which takes so many bytes beside its encoding, to the young generation. One that
// is larger than a generation is not kept. The caller holds the lock.
func (s *Sharer) put(encoding string, part any, bytes int) {
	cost := partCost + len(encoding) + bytes
	if cost > s.room {
		return
	}
	if s.size+cost > s.room {
		s.old, s.young, s.size = s.young, make(map[string]any), 0
	}
	s.young[encoding] = part
	s.size += cost
}

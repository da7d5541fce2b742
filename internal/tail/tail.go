// Package tail keeps the end of a program's output, such as its log, in bounded memory. It can be
// shown when the log itself is out of reach.
package tail

import (
	"bytes"
	"sync"
)

// Buffer keeps the last lines that were written to it. It is safe for concurrent use. The zero
// value keeps nothing; see New.
type Buffer struct {
	mu    sync.Mutex
	ring  []byte
	next  int  // where the next byte goes
	whole bool // the ring was filled once: older data follow next
}

// New returns a Buffer for at most size bytes. The memory is taken as it is needed.
func New(size int) *Buffer { return &Buffer{ring: make([]byte, 0, size)} }

// Write implements io.Writer. It never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, size := len(p), cap(b.ring)
	if len(p) > size {
		p, b.whole = p[len(p)-size:], true
	}
	for len(p) > 0 && size > 0 {
		if len(b.ring) < size {
			take := min(len(p), size-len(b.ring))
			b.ring = append(b.ring, p[:take]...)
			p = p[take:]
			b.next = len(b.ring) % size
			continue
		}
		b.whole = true
		took := copy(b.ring[b.next:], p)
		p = p[took:]
		b.next = (b.next + took) % size
	}
	return n, nil
}

// Bytes returns the kept output, oldest first. It begins with a whole line unless a single line is
// longer than the buffer.
func (b *Buffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.whole {
		return bytes.Clone(b.ring)
	}
	out := append(bytes.Clone(b.ring[b.next:]), b.ring[:b.next]...)
	if i := bytes.IndexByte(out, '\n'); i >= 0 && i < len(out)-1 {
		out = out[i+1:]
	}
	return out
}

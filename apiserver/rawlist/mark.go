package rawlist

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"debug/elf"
	"io"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
)

// A stored object may have a mark: bytes behind it that decoders skip. It shows that the object
// was decoded, with every default, and encoded before it was written, and that the same bytes came
// out. A server with the same program need not do it again. So decoding, defaults and encoding
// must depend on nothing but the program and the inputs of the mark's hash: on no flag, and on no
// other object.
const markSize = 8

// build names this program: any change of it, a default say, changes the name. A program without a
// name trusts no marks but its own.
var build = sync.OnceValue(func() []byte {
	if id := buildID(); len(id) > 0 {
		return id
	}
	id := make([]byte, 32)
	_, _ = rand.Read(id) // never fails
	return id
})

// buildID returns the note of Go's linker in the program, which includes a hash of its code and
// data. It is read from the running program, which an upgrade may have replaced on disk.
func buildID() []byte {
	program, err := elf.Open("/proc/self/exe")
	if err != nil {
		return nil
	}
	defer func() { _ = program.Close() }()
	section := program.Section(".note.go.buildid")
	if section == nil {
		return nil
	}
	note, err := section.Data()
	if err != nil {
		return nil
	}
	return idIn(note)
}

// idIn returns the id in a linker's note, if Go's build has made it: two hashes of the linker's
// input and two of its output, for the program and its main package. A build can set any other
// text, such as "redacted", which is then the same for all programs.
func idIn(note []byte) []byte {
	_, id, ok := bytes.Cut(note, []byte("Go\x00\x00"))
	if parts := bytes.Split(id, []byte("/")); !ok || len(parts) != 4 || len(parts[0]) < 16 {
		return nil
	}
	return id
}

// newMark returns the mark of objects that these values distinguish from others.
func newMark(of ...[]byte) []byte {
	sum := sha256.New()
	for _, part := range append([][]byte{build()}, of...) {
		size := sha256.Sum256(part)
		sum.Write(size[:])
	}
	return sum.Sum(nil)[:markSize]
}

// Mark returns the bytes to store of an object: the encoded bytes, or a copy of them with the mark
// if the object decoded from them, with nothing changed, is encoded to them again.
func (f *Format) Mark(encoded []byte, decoded runtime.Object) []byte {
	if size, ok := f.unmarked(encoded); !ok || size != len(encoded) {
		return encoded
	}
	if _, ok := f.item(encoded, 1); !ok {
		return encoded
	}
	same := comparison{left: encoded}
	if err := f.encode(decoded, &same); err != nil || same.differs || len(same.left) > 0 {
		return encoded
	}
	return slices.Concat(encoded, f.mark) // append would take up to twice the memory
}

// encode encodes as the store does, in memory that is used again.
func (f *Format) encode(object runtime.Object, w io.Writer) error {
	codec, ok := f.encoder.(runtime.EncoderWithAllocator)
	if !ok {
		return f.encoder.Encode(object, w)
	}
	allocator := runtime.AllocatorPool.Get().(*runtime.Allocator)
	defer runtime.AllocatorPool.Put(allocator)
	return codec.EncodeWithAllocator(object, w, allocator)
}

// Unmarked returns stored bytes without the mark of any program.
func Unmarked(value []byte) []byte {
	for _, l := range layouts {
		if size, ok := l.unmarked(value); ok {
			return value[:size]
		}
	}
	return value
}

// Marked reports whether stored bytes are of an object that this program would decode and encode to
// the same bytes.
func (f *Format) Marked(value []byte) bool {
	if f == nil || !bytes.HasSuffix(value, f.mark) {
		return false
	}
	size, ok := f.unmarked(value)
	return ok && size == len(value)-len(f.mark) && f.is(value)
}

// comparison is a writer that compares its input with expected bytes.
type comparison struct {
	left    []byte // the expected bytes that are left
	differs bool
}

// Write implements io.Writer.
func (c *comparison) Write(p []byte) (int, error) {
	if c.differs = c.differs || !bytes.HasPrefix(c.left, p); !c.differs {
		c.left = c.left[len(p):]
	}
	return len(p), nil
}

var _ io.Writer = (*comparison)(nil)

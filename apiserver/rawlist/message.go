package rawlist

import (
	"bytes"
	"encoding/binary"

	"k8s.io/apimachinery/pkg/labels"
)

// messages is the layout of a kind that is stored as protobuf. A mark is a field behind the fields
// of the envelope.
type messages struct {
	typeMeta []byte          // of an object
	fields   map[string]path // where they are in a message
}

var _ layout = (*messages)(nil)

const unknownMark = 15<<3 | 2

// unmarkedEnd is how an envelope ends without a mark: with two empty fields.
var unmarkedEnd = []byte{3<<3 | 2, 0, 4<<3 | 2, 0}

// markOfMessages writes a mark as a field.
func markOfMessages(mark []byte) []byte { return append([]byte{unknownMark, byte(len(mark))}, mark...) }

// unmarked implements layout.
func (*messages) unmarked(value []byte) (size int, ok bool) {
	_, _, _, end, ok := envelope(value)
	if !ok {
		return 0, false
	}
	rest, ok := bytes.CutPrefix(value[end:], unmarkedEnd)
	if !ok || len(rest) > 0 && (len(rest) != 2+markSize || rest[0] != unknownMark || rest[1] != markSize) {
		return 0, false
	}
	return len(value) - len(rest), true
}

// is implements layout.
func (m *messages) is(value []byte) bool {
	typeMeta, _, _, _, ok := envelope(value)
	return ok && bytes.Equal(typeMeta, m.typeMeta)
}

// item implements layout.
func (*messages) item(value []byte, revision uint64) (piece, bool) {
	_, message, _, _, ok := envelope(value)
	if !ok {
		return piece{}, false
	}
	return splice(message, revision)
}

// event implements layout.
func (m *messages) event(value []byte, revision uint64) ([]byte, bool) {
	_, _, begin, end, _ := envelope(value)
	p, ok := m.item(value, revision)
	if !ok {
		return nil, false
	}
	size := p.size()
	b := make([]byte, 0, begin+1+varintSize(size)+size+len(unmarkedEnd))
	b = append(b, value[:begin]...)
	b = append(b, unknownRaw)
	b = binary.AppendUvarint(b, uint64(size))
	b, rest := p.appendTo(b)
	b = append(b, rest...)
	return append(b, value[end:end+len(unmarkedEnd)]...), true
}

// labels implements layout.
func (*messages) labels(value []byte) (labels.Labels, bool) { return StoredLabels(value) }

// finds implements layout.
func (m *messages) finds(name string) bool { return m.fields[name] != nil }

// field implements layout.
func (m *messages) field(value []byte, name string) string {
	_, message, _, _, _ := envelope(value)
	return m.fields[name].find(message)
}

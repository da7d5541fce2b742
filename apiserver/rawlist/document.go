package rawlist

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// documents is the layout of custom resources: JSON as encoding/json writes maps, with their keys
// in order and no white space, and a new line behind it. Behind that, a mark is white space, of
// which each character stands for two bits.
type documents struct{}

var _ layout = documents{}

const (
	documentMark  = markSize * 4
	versionKey    = `"resourceVersion"`
	documentStart = '{'
)

// versionName is the key without its quotes.
var versionName = []byte(versionKey[1 : len(versionKey)-1])

// whiteSpace are the characters that decoders skip.
const whiteSpace = " \t\n\r"

// markOfDocuments writes a mark as white space.
func markOfDocuments(mark []byte) []byte {
	var b []byte
	for _, c := range mark {
		for shift := 0; shift < 8; shift += 2 {
			b = append(b, whiteSpace[c>>shift&3])
		}
	}
	return b
}

// unmarked implements layout.
func (documents) unmarked(value []byte) (size int, ok bool) {
	if len(value) == 0 || value[0] != documentStart {
		return 0, false
	}
	if size := len(value) - documentMark; size > 2 && string(value[size-2:size]) == "}\n" &&
		len(bytes.Trim(value[size:], whiteSpace)) == 0 {
		return size, true
	}
	return len(value), bytes.HasSuffix(value, []byte("}\n"))
}

// is implements layout. The mark shows the kind.
func (documents) is([]byte) bool { return true }

// item implements layout.
func (d documents) item(value []byte, revision uint64) (piece, bool) {
	size, ok := d.unmarked(value)
	if !ok || size > 1<<30 {
		return piece{}, false
	}
	meta, ok := metadataOf(value)
	if !ok {
		return piece{}, false
	}
	place := 0 // before the first key that comes after it, or else behind all
	var last member
	for m := range meta.members {
		order := bytes.Compare(m.name(), versionName)
		if order == 0 {
			return piece{}, false
		}
		if last = m; order > 0 {
			place = m.begin
			break
		}
	}
	if place == 0 && last.key != nil {
		place = last.value.end()
	}
	if place == 0 || place >= size-1 {
		return piece{}, false
	}
	return piece{data: value[:size-1], revision: revision, versionAt: int32(place), document: true}, true
}

// event implements layout.
func (d documents) event(value []byte, revision uint64) ([]byte, bool) {
	p, ok := d.item(value, revision)
	if !ok {
		return nil, false
	}
	b, rest := p.appendTo(make([]byte, 0, p.size()+1))
	return append(append(b, rest...), '\n'), true
}

// labels implements layout.
func (documents) labels(value []byte) (labels.Labels, bool) {
	meta, ok := metadataOf(value)
	if !ok {
		return nil, false
	}
	if found, ok := meta.find(`"labels"`); ok {
		return documentLabels{found}, true
	}
	return documentLabels{}, true
}

// finds implements layout.
func (documents) finds(name string) bool {
	return name == "metadata.name" || name == "metadata.namespace"
}

// field implements layout.
func (documents) field(value []byte, name string) string {
	meta, ok := metadataOf(value)
	if !ok {
		return ""
	}
	found, _ := meta.find(`"` + strings.TrimPrefix(name, "metadata.") + `"`)
	return found.text()
}

// documentLabels are an object of strings within a document.
type documentLabels struct{ part }

var _ labels.Labels = documentLabels{}

// Lookup implements labels.Labels.
func (l documentLabels) Lookup(label string) (value string, exists bool) {
	for m := range l.members {
		if string(m.name()) == label {
			return m.value.text(), true
		}
	}
	return "", false
}

// Has implements labels.Labels.
func (l documentLabels) Has(label string) bool {
	_, exists := l.Lookup(label)
	return exists
}

// Get implements labels.Labels.
func (l documentLabels) Get(label string) string {
	value, _ := l.Lookup(label)
	return value
}

// part is a value in a document, from its begin to the end of the document.
type part struct {
	document []byte
	at       int
}

// metadataOf returns the metadata of an object, which are an object.
func metadataOf(document []byte) (part, bool) {
	p, ok := part{document, 0}.find(`"metadata"`)
	return p, ok && document[p.at] == '{'
}

// member is a member of an object.
type member struct {
	begin int
	key   []byte // with its quotes
	value part
}

// name is the key as encoding/json orders it.
func (m member) name() []byte {
	if bytes.IndexByte(m.key, '\\') >= 0 {
		return []byte(textOf(m.key))
	}
	return m.key[1 : len(m.key)-1]
}

// find returns the value of a member whose key, with its quotes, needs no escapes.
func (p part) find(key string) (part, bool) {
	for m := range p.members {
		if string(m.key) == key {
			return m.value, true
		}
	}
	return part{}, false
}

// members yields the members of an object; a value that is no object has none. A value is walked
// over only to reach the next one.
func (p part) members(yield func(member) bool) {
	b := p.document
	if p.at >= len(b) || b[p.at] != '{' {
		return
	}
	for at := p.at + 1; at < len(b) && b[at] == '"'; at++ {
		m := member{begin: at}
		at = stringEnd(b, at)
		m.key = b[m.begin:at]
		if at+1 >= len(b) || b[at] != ':' {
			return
		}
		if m.value = (part{b, at + 1}); !yield(m) {
			return
		}
		if at = m.value.end(); at >= len(b) || b[at] != ',' {
			return
		}
	}
}

// text returns the value of a string; "" for any other value.
func (p part) text() string {
	if p.at >= len(p.document) {
		return ""
	}
	return textOf(p.document[p.at:p.end()])
}

func textOf(quoted []byte) (s string) {
	if len(quoted) < 2 || quoted[0] != '"' || quoted[len(quoted)-1] != '"' {
		return ""
	}
	if bytes.IndexByte(quoted, '\\') < 0 {
		return string(quoted[1 : len(quoted)-1])
	}
	if err := json.Unmarshal(quoted, &s); err != nil {
		return ""
	}
	return s
}

// stringEnd returns where a string ends that begins at a place, or the end of all.
func stringEnd(b []byte, at int) int {
	for at++; at < len(b); at++ {
		n := bytes.IndexByte(b[at:], '"')
		if n < 0 {
			return len(b)
		}
		at += n
		escapes := 0
		for b[at-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return at + 1
		}
	}
	return len(b)
}

// end returns where a value ends, or the end of all.
func (p part) end() int {
	b, at := p.document, p.at
	for depth := 0; at < len(b); {
		switch b[at] {
		case '"':
			at = stringEnd(b, at)
		case '{', '[':
			depth++
			at++
			continue
		case '}', ']':
			if depth == 0 {
				return at
			}
			depth--
			at++
		case ',':
			if depth == 0 {
				return at
			}
			at++
			continue
		default:
			at++
			continue
		}
		if depth == 0 {
			return at
		}
	}
	return len(b)
}

// appendVersion appends a document up to its resourceVersion, and returns the rest.
func (p *piece) appendVersion(b []byte) (head, rest []byte) {
	before, after := p.data[:p.versionAt], p.data[p.versionAt:]
	b = append(b, before...)
	if after[0] != '"' {
		b = append(b, ',')
	}
	b = append(append(b, versionKey...), ':', '"')
	b = append(strconv.AppendUint(b, p.revision, 10), '"')
	if after[0] == '"' {
		b = append(b, ',')
	}
	return b, after
}

package rawlist

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	goruntime "runtime"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/metrics"
)

// ErrTooLarge is returned by List.Add when the List would hold more than half of the cache's bound.
var ErrTooLarge = errors.New("the list is too large to be made of stored bytes")

// Format is how the objects of one resource are stored and listed. Make one with NewFormat.
type Format struct {
	layout
	stored   Encoding // the encoding of the store
	resource schema.GroupResource
	version  schema.GroupVersion // in which they are stored
	typeMeta []byte              // of a list, as protobuf
	jsonHead []byte              // the JSON of a list before its metadata
	jsonTail []byte              // and behind its metadata
	salt     uint64
	cache    *Cache

	encoder runtime.Encoder // encodes to the stored form
	mark    []byte          // behind a marked object
	form    *form           // of the encoder that gives the same
	events  metrics.CounterMetric
}

// message is an object that can be encoded as protobuf.
type message interface{ Marshal() ([]byte, error) }

// NewFormat returns the Format of the objects of a resource that a codec encodes, of which one and
// a list are given. It is nil when they have a type, or a version, of their own in memory, and when
// they are stored neither as protobuf nor as custom resources are.
func NewFormat(
	resource schema.GroupResource, codec runtime.Encoder, object, list runtime.Object, cache *Cache,
) *Format {
	f := &Format{resource: resource, cache: cache, encoder: EncoderOf(codec)}
	stored, err := runtime.Encode(codec, object)
	if err != nil {
		return nil
	}
	switch object := object.(type) {
	case *unstructured.Unstructured:
		if !f.ofDocuments(codec, object, stored) {
			return nil
		}
	case message:
		encoded, err := runtime.Encode(codec, list)
		if err != nil || !f.ofMessages(object.(runtime.Object), stored, encoded) {
			return nil
		}
	default:
		return nil
	}
	registerMetrics()
	f.events = Events.WithLabelValues(resource.Group, resource.Resource)
	return f
}

// ofMessages makes the Format one of objects that are stored as protobuf, as one and a list of them
// are.
func (f *Format) ofMessages(object runtime.Object, stored, list []byte) bool {
	typeMeta, _, _, _, ok := envelope(list)
	if !ok {
		return false
	}
	var unknown runtime.Unknown
	if err := unknown.Unmarshal(list[len(magic):]); err != nil {
		return false
	}
	objectType, _, _, _, ok := envelope(stored)
	if !ok {
		return false
	}
	kind := unknown.GroupVersionKind()
	f.stored = Protobuf
	f.version = kind.GroupVersion()
	f.typeMeta = typeMeta
	f.jsonHead = fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,`, kind.Kind, kind.GroupVersion())
	f.jsonTail = []byte(`"items":[]}` + "\n")
	f.salt = f.cache.hash(string(typeMeta))
	f.layout = &messages{typeMeta: objectType, fields: commonFields()}
	f.mark = markOfMessages(newMark([]byte(reflect.TypeOf(object).String()), objectType))
	f.form = newForm(protobufOf(f.version), object, stored)
	return true
}

// ofDocuments makes the Format one of custom resources, if they are stored in the
// requested version.
func (f *Format) ofDocuments(codec runtime.Encoder, object *unstructured.Unstructured, stored []byte) bool {
	var encoded bytes.Buffer
	if err := unstructured.UnstructuredJSONScheme.Encode(object, &encoded); err != nil ||
		!bytes.Equal(encoded.Bytes(), stored) {
		return false
	}
	f.stored = JSON
	f.version = object.GroupVersionKind().GroupVersion()
	f.jsonHead = fmt.Appendf(nil, `{"apiVersion":%q,"items":[]`, f.version)
	f.jsonTail = []byte("}\n")
	f.layout = documents{}
	f.mark = markOfDocuments(newMark(fingerprint(codec), stored))
	f.salt = f.cache.hash(string(f.mark)) // another schema decodes the same bytes to other objects
	f.form = newForm(jsonOf(f.version), object, stored)
	return true
}

// entry names a revision of an object. A fact about an object in a list of one kind does not hold
// in lists of another kind, which may be stored below the same keys.
func (f *Format) entry(key string, revision uint64, encoding Encoding) entry {
	return entry{f.cache.hash(key) ^ f.salt, revision, encoding}
}

// List is a list whose objects are encoded already. It is a runtime.CacheableObject, so encoders
// let it write itself. It is for one request.
type List struct {
	wanted
	format *Format
	decode Decode
	fill   func(list runtime.Object) error

	objects int // that will come
	pieces  []piece
	held    int            // bytes that are not the store's
	list    runtime.Object // with its metadata, without items; nil before End
}

var _ runtime.CacheableObject = (*List)(nil)

// Decode decodes a stored value, and sets the resourceVersion.
type Decode func(ctx context.Context, key string, value []byte, revision uint64) (runtime.Object, error)

// Takes reports whether the List can be of objects in a format. It is false for a nil format. A
// list of custom resources also needs a response that the List can be written into.
func (l *List) Takes(f *Format) bool {
	if f == nil || l.encoding == None || l.version != f.version {
		return false
	}
	return f.stored == Protobuf || l.response != nil
}

// Begin empties the List, which will get so many objects. It is false when their entries would
// exceed the cache's bound.
func (l *List) Begin(f *Format, objects int, decode Decode) bool {
	l.format, l.decode, l.objects = f, decode, objects
	l.pieces, l.list, l.held = nil, nil, objects*entryCost
	return l.Fits(0)
}

// Copies reports whether the List will hold an encoding of each object beside the stored one, which
// is seldom shorter.
func (l *List) Copies() bool { return l.encoding != l.format.stored }

// Fits reports whether the List may hold so many bytes more.
func (l *List) Fits(bytes int) bool { return l.held+bytes <= l.format.cache.bound }

// Abandon empties a List that will not be completed.
func (l *List) Abandon() { l.pieces, l.list = nil, nil }

// hold adds an object that was encoded.
func (l *List) hold(data []byte) error {
	if !l.Fits(len(data)) {
		return ErrTooLarge
	}
	l.held += len(data)
	l.push(piece{data: data})
	return nil
}

func (l *List) push(p piece) {
	if l.pieces == nil {
		l.pieces = make([]piece, 0, l.objects)
	}
	l.pieces = append(l.pieces, p)
}

// Len is the number of objects.
func (l *List) Len() int { return len(l.pieces) }

// Add adds a stored object. It fails when the object cannot be read, or with ErrTooLarge.
func (l *List) Add(ctx context.Context, key string, value []byte, revision uint64) error {
	e := l.format.entry(key, revision, l.encoding)
	data, known := l.format.cache.get(e)
	if known && data != nil {
		return l.hold(data)
	}
	var stored piece
	usable := false
	if l.encoding == l.format.stored {
		if stored, usable = l.format.item(value, revision); usable && (known || l.format.Marked(value)) {
			l.push(stored)
			return nil
		}
	}
	obj, err := l.decode(ctx, key, value, revision)
	if err != nil {
		return err
	}
	if data, err = l.encode(obj); err != nil {
		return err
	}
	goruntime.Gosched() // a page takes a core for a tenth of a second, and others want to answer
	if usable && stored.equals(data) {
		l.format.cache.put(e, nil)
		l.push(stored)
		return nil
	}
	l.format.cache.put(e, data)
	return l.hold(data)
}

// encode encodes an object as a part of a list.
func (l *List) encode(obj runtime.Object) ([]byte, error) {
	if l.format.stored == JSON {
		return encodeJSON(obj)
	}
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // the list has it
	if l.encoding == JSON {
		return encodeJSON(obj)
	}
	m, ok := obj.(message)
	if !ok {
		return nil, fmt.Errorf("a %T cannot be encoded as protobuf", obj)
	}
	return m.Marshal()
}

// End completes the List with its metadata, which list has. fill puts the objects into it, for an
// encoder that needs them.
func (l *List) End(list runtime.Object, fill func(list runtime.Object) error) {
	l.list, l.fill = list, fill
}

// Answer returns the List if a storage has filled it, and else the list that it was given.
func (l *List) Answer(list runtime.Object) runtime.Object {
	if l == nil || l.list == nil {
		return list
	}
	return l
}

// CacheEncode implements runtime.CacheableObject.
func (l *List) CacheEncode(_ runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	var empty bytes.Buffer
	if err := encode(l.list, &empty); err != nil {
		return err
	}
	switch data := empty.Bytes(); l.encoding {
	case Protobuf:
		if typeMeta, message, begin, end, ok := envelope(data); ok && bytes.Equal(typeMeta, l.format.typeMeta) {
			l.count("protobuf")
			return stream(w, len(magic), func(w io.Writer) error {
				return writeProtobuf(w, data[:begin], message, data[end:], l.pieces)
			})
		}
	case JSON:
		if place, ok := l.format.placeOfItems(data); ok {
			l.count("json")
			return stream(w, 1, func(w io.Writer) error { return writeJSON(w, data[:place], data[place:], l.pieces) })
		}
	}
	if err := l.fill(l.list); err != nil {
		return err
	}
	return encode(l.list, w)
}

// placeOfItems returns where the items of a list without any belong, in JSON without an indent.
func (f *Format) placeOfItems(empty []byte) (int, bool) {
	if !bytes.HasPrefix(empty, f.jsonHead) || !bytes.HasSuffix(empty, f.jsonTail) {
		return 0, false
	}
	if f.stored == JSON {
		return len(f.jsonHead) - 1, true
	}
	return len(empty) - len("]}\n"), true
}

// chunk is the size of the portions in which a List is written.
const chunk = 64 << 10

// stream writes in chunks, but first some bytes alone: by such a first write the API
// machinery recognizes a response that comes in parts, and decides only later whether it is
// worth compressing.
func stream(w io.Writer, first int, write func(io.Writer) error) error {
	b := bufio.NewWriterSize(w, chunk)
	if err := write(&opening{b: b, w: w, left: first}); err != nil {
		return err
	}
	return b.Flush()
}

// opening writes the first bytes by themselves, and all others into a buffer.
type opening struct {
	b    *bufio.Writer
	w    io.Writer
	left int
}

// Write implements io.Writer.
func (o *opening) Write(p []byte) (int, error) {
	if o.left == 0 {
		return o.b.Write(p)
	}
	n, err := o.w.Write(p[:min(o.left, len(p))])
	o.left -= n
	if err != nil || n == len(p) {
		return n, err
	}
	m, err := o.b.Write(p[n:])
	return n + m, err
}

// GetObject implements runtime.CacheableObject.
func (l *List) GetObject() runtime.Object { return l.list }

// GetObjectKind implements runtime.Object.
func (l *List) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. A List does not change while it is an answer.
func (l *List) DeepCopyObject() runtime.Object { return l }

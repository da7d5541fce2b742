package rawlist

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/metrics"
)

// ErrTooLarge is returned by List.Add when the List would hold more than half of what the cache
// may.
var ErrTooLarge = errors.New("the list is too large to be made of stored bytes")

// Format is how the objects of one resource are stored and listed. Make one with NewFormat.
type Format struct {
	resource schema.GroupResource
	version  schema.GroupVersion // in which they are stored
	typeMeta []byte              // of a list, as protobuf
	jsonType []byte              // of a list, the beginning of its JSON
	salt     uint64              // hash of typeMeta
	cache    *Cache

	codec      runtime.Encoder // gives what is stored
	objectType []byte          // of an object, as protobuf
	markedEnd  []byte          // how a marked object ends
	form       *form           // of the encoder that gives the same
	fields     map[string]path // where fields are in a message
	events     metrics.CounterMetric
}

// message is an object that can be encoded as protobuf.
type message interface{ Marshal() ([]byte, error) }

// NewFormat returns the Format of the objects of a resource that a codec encodes, of which one and
// a list are given. It is nil when they are not stored as protobuf, or have a type of their own in
// memory.
func NewFormat(resource schema.GroupResource, codec runtime.Encoder, object, list runtime.Object, cache *Cache) *Format {
	if _, ok := object.(message); !ok {
		return nil
	}
	data, err := runtime.Encode(codec, list)
	if err != nil {
		return nil
	}
	typeMeta, _, _, _, ok := envelope(data)
	if !ok {
		return nil
	}
	var unknown runtime.Unknown
	if err := unknown.Unmarshal(data[len(magic):]); err != nil {
		return nil
	}
	one, err := runtime.Encode(codec, object)
	if err != nil {
		return nil
	}
	objectType, _, _, _, ok := envelope(one)
	if !ok {
		return nil
	}
	registerMetrics()
	kind := unknown.GroupVersionKind()
	return &Format{
		resource: resource,
		version:  kind.GroupVersion(),
		typeMeta: typeMeta,
		jsonType: fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,`, kind.Kind, kind.GroupVersion()),
		salt:     cache.hash(string(typeMeta)),
		cache:    cache,

		codec:      codec,
		objectType: objectType,
		markedEnd:  newMarkedEnd(reflect.TypeOf(object).String(), objectType),
		form:       newForm(kind.GroupVersion(), object, one),
		fields:     commonFields(),
		events:     Events.WithLabelValues(resource.Group, resource.Resource),
	}
}

// entry names a revision of an object. What is remembered of an object in a list of one kind is not
// said of it in lists of another kind, which may be stored below the same keys.
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

// Takes tells whether the List can be of objects in a format. A format that is nil is no one's.
func (l *List) Takes(f *Format) bool {
	return f != nil && l.encoding != None && l.version == f.version
}

// Begin empties the List, which will get so many objects. It is false when these are more than the
// cache can remember something of.
func (l *List) Begin(f *Format, objects int, decode Decode) bool {
	l.format, l.decode, l.objects = f, decode, objects
	l.pieces, l.list, l.held = nil, nil, objects*entryCost
	return l.Fits(0)
}

// Copies tells whether the List will hold an encoding of each object beside the stored one, which
// is seldom shorter.
func (l *List) Copies() bool { return l.encoding == JSON }

// Fits tells whether the List may hold so many bytes more.
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
	if l.encoding == Protobuf {
		if _, message, _, _, ok := envelope(value); ok {
			stored, usable = splice(message, revision)
		}
		if usable && (known || l.format.Marked(value)) {
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
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // the list says it
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
		if bytes.HasPrefix(data, l.format.jsonType) && bytes.HasSuffix(data, []byte(jsonTail)) {
			l.count("json")
			return stream(w, 1, func(w io.Writer) error { return writeJSON(w, data, l.pieces) })
		}
	}
	if err := l.fill(l.list); err != nil {
		return err
	}
	return encode(l.list, w)
}

// chunk is in what portions a List is written.
const chunk = 64 << 10

// stream writes in chunks, but first some bytes alone: by such a first write the API machinery
// knows a response that comes in parts, and decides only later whether it is worth compressing.
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

// DeepCopyObject implements runtime.Object. Nobody changes a List that is being answered with.
func (l *List) DeepCopyObject() runtime.Object { return l }

package objectcache

import (
	"bytes"
	"io"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Encoder encodes objects as they are stored.
type Encoder interface {
	// Encode returns a stored object in the encoding of another encoder, by its identifier. It is
	// false where the object must be decoded and encoded with encode.
	Encode(identifier runtime.Identifier, encode func(runtime.Object, io.Writer) error, of Stored) ([]byte, bool)
}

// Object is one revision of an object. All callers share it, so it is only read. It
// keeps the encodings that were made of it: encoders of the API machinery know it as
// a runtime.CacheableObject.
type Object struct {
	shard   *shard // nil for one that is in no cache
	counts  *counted
	entry   entry
	stored  Stored
	decode  Decode  // nil when it is under way, or was done
	encoder Encoder // nil for an object that must be decoded for each form
	cost    int     // in bytes; guarded by the lock of the shard
	counted bool    // the decoded object is in the cost
	once    sync.Once
	decoded atomic.Bool // object is there
	object  runtime.Object
	err     error

	mu        sync.Mutex
	encodings []*encoding // a few at the most: forms are of the protocol, not of the client
}

// encoding is an object in one form.
type encoding struct {
	form runtime.Identifier
	once sync.Once
	data []byte
	err  error
}

var (
	_ runtime.CacheableObject   = (*Object)(nil)
	_ metav1.ObjectMetaAccessor = (*Object)(nil)
)

// Shared returns the object itself, once it is decoded. It, and all that it refers to, must not
// be changed.
func (o *Object) Shared() runtime.Object { return o.object }

// Decoded returns the object itself as Shared does, and decodes it before.
func (o *Object) Decoded() (runtime.Object, error) {
	if first := o.read(); !first && o.counts != nil {
		o.counts.hits.Inc()
	}
	return o.object, o.err
}

// read decodes the object unless a caller has tried that before. A read by a caller that has the
// object already is not counted: it is no lookup.
func (o *Object) read() (first bool) {
	o.once.Do(func() {
		first = true
		if o.counts != nil {
			o.counts.misses.Inc()
		}
		decode := o.decode
		o.decode = nil        // which may refer to the request that wanted the object first
		o.err = errUnfinished // when decode panics
		defer func() {
			if o.err == nil {
				o.decoded.Store(true)
			}
			o.account()
		}()
		o.object, o.err = decode(o.stored)
	})
	return first
}

// account gives the shard the outcome of the decoding.
func (o *Object) account() {
	switch {
	case o.shard == nil:
	case o.err != nil:
		// The next one may fare better: keys of encryption come and go.
		o.shard.remove(o)
	case !o.counted:
		o.shard.grow(o, decodedFactor*len(o.stored.Value))
	}
}

// CopyTo makes an object of the same type a copy whose fields may be set. Values that they refer to
// are shared, and must not be changed. It returns false for an object of another type.
func (o *Object) CopyTo(out runtime.Object) bool {
	from, to := reflect.ValueOf(o.object), reflect.ValueOf(out)
	if from.Type() != to.Type() || from.Kind() != reflect.Pointer {
		return false
	}
	to.Elem().Set(from.Elem())
	return true
}

// GetObject implements runtime.CacheableObject: the copy is the caller's. For an object that cannot
// be decoded it is a Status with the reason.
func (o *Object) GetObject() runtime.Object {
	if o.read(); o.err != nil {
		return &apierrors.NewInternalError(o.err).ErrStatus
	}
	return o.object.DeepCopyObject()
}

// CacheEncode implements runtime.CacheableObject.
func (o *Object) CacheEncode(form runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	e := o.encoding(form)
	e.once.Do(func() {
		e.err = errUnfinished // when encode panics
		defer func() {
			if e.err != nil {
				o.forget(e)
			}
		}()
		if e.data, e.err = o.encode(form, encode); e.err == nil && o.shard != nil {
			o.shard.grow(o, encodingCost+cap(e.data))
		}
	})
	if e.err != nil {
		return e.err
	}
	return write(w, e.data)
}

// eventForm is the prefix of the identifiers of encoders of watch events. Such an encoder puts into
// the event the encoding by another one, which has its own identifier.
const eventForm = `{"name":"watch",`

// encode makes an encoding.
func (o *Object) encode(form runtime.Identifier, encode func(runtime.Object, io.Writer) error) ([]byte, error) {
	var (
		data bytes.Buffer
		err  error
	)
	if o.encoder != nil && strings.HasPrefix(string(form), eventForm) {
		err = encode(unread{o}, &data)
	} else {
		err = unread{o}.CacheEncode(form, encode, &data)
	}
	return data.Bytes(), err
}

// unread is an Object within an event. Its own encoding is not kept, because the event's
// includes it.
type unread struct{ *Object }

var _ runtime.CacheableObject = unread{}

// CacheEncode implements runtime.CacheableObject.
func (u unread) CacheEncode(form runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	if u.encoder != nil {
		if data, ok := u.encoder.Encode(form, encode, u.stored); ok {
			return write(w, data)
		}
	}
	if u.read(); u.err != nil {
		return u.err
	}
	return encode(u.Copy(), w)
}

// write writes bytes that never change.
func write(w io.Writer, data []byte) error {
	if splice, ok := w.(runtime.Splice); ok {
		splice.Splice(data)
		return nil
	}
	_, err := w.Write(data)
	return err
}

// Copy returns a copy in which the kind may be set: encoders set the kind of their object, and
// restore it afterwards. That of an unstructured object is in its outermost map. Values that the
// copy refers to are shared, and must not be changed.
func (o *Object) Copy() runtime.Object {
	if _, custom := o.object.(runtime.Unstructured); custom {
		return o.object.DeepCopyObject()
	}
	out := reflect.New(reflect.TypeOf(o.object).Elem())
	out.Elem().Set(reflect.ValueOf(o.object).Elem())
	return out.Interface().(runtime.Object)
}

func (o *Object) encoding(form runtime.Identifier) *encoding {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.encodings {
		if e.form == form {
			return e
		}
	}
	e := &encoding{form: form}
	o.encodings = append(o.encodings, e)
	return e
}

// forget drops an encoding that failed, so that it is tried again.
func (o *Object) forget(e *encoding) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, other := range o.encodings {
		if other == e {
			o.encodings = append(o.encodings[:i:i], o.encodings[i+1:]...)
			return
		}
	}
}

// GetObjectMeta implements metav1.ObjectMetaAccessor. The metadata is only to be read.
func (o *Object) GetObjectMeta() metav1.Object {
	if o.read(); o.err != nil {
		return nil
	}
	accessor, err := meta.Accessor(o.object)
	if err != nil {
		return nil
	}
	return accessor
}

// GetObjectKind implements runtime.Object. The kind is only to be read. An object that is not
// decoded names none, as those that have a type of their own in memory do not.
func (o *Object) GetObjectKind() schema.ObjectKind {
	if !o.decoded.Load() {
		return schema.EmptyObjectKind
	}
	return o.object.GetObjectKind()
}

// DeepCopyObject implements runtime.Object with GetObject: a full copy of a shared object would
// be wasted.
func (o *Object) DeepCopyObject() runtime.Object { return o.GetObject() }

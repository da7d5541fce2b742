package objectcache

import (
	"bytes"
	"io"
	"reflect"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Object is one revision of an object. All who get it share it, so it is only read. It keeps the
// encodings that were made of it: encoders of the API machinery know it as a
// runtime.CacheableObject.
type Object struct {
	shard   *shard
	entry   entry
	stored  []byte // what it was decoded from
	cost    int    // in bytes; guarded by the lock of the shard
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

// Shared returns the object itself. Nobody may change it, or what it refers to.
func (o *Object) Shared() runtime.Object { return o.object }

// CopyTo makes an object of the same type a copy whose fields may be set. What they refer to is
// shared, and must not be changed. It returns false for an object of another type.
func (o *Object) CopyTo(out runtime.Object) bool {
	from, to := reflect.ValueOf(o.object), reflect.ValueOf(out)
	if from.Type() != to.Type() || from.Kind() != reflect.Pointer {
		return false
	}
	to.Elem().Set(from.Elem())
	return true
}

// GetObject implements runtime.CacheableObject: the copy is the caller's.
func (o *Object) GetObject() runtime.Object { return o.object.DeepCopyObject() }

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
		var data bytes.Buffer
		if e.err = encode(o.Copy(), &data); e.err == nil {
			e.data = data.Bytes()
			o.shard.grow(o, cap(e.data))
		}
	})
	if e.err != nil {
		return e.err
	}
	if splice, ok := w.(runtime.Splice); ok {
		splice.Splice(e.data)
		return nil
	}
	_, err := w.Write(e.data)
	return err
}

// Copy returns a copy in which the kind may be set: encoders set that of what they encode, and
// restore it afterwards. That of an unstructured object is in its outermost map. What the copy
// refers to is shared, and must not be changed.
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

// forget lets an encoding that failed be tried again.
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
	accessor, err := meta.Accessor(o.object)
	if err != nil {
		return nil
	}
	return accessor
}

// GetObjectKind implements runtime.Object. The kind is only to be read.
func (o *Object) GetObjectKind() schema.ObjectKind { return o.object.GetObjectKind() }

// DeepCopyObject implements runtime.Object: a copy of what is shared would be for nothing.
func (o *Object) DeepCopyObject() runtime.Object { return o.GetObject() }

package storage

import (
	"context"
	"fmt"
	"reflect"

	"github.com/barque/barque/apiserver/objectcache"
	"github.com/barque/barque/apiserver/storeerror"
	"github.com/barque/barque/raftstore"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// transformError is the error of a stored value that could not be transformed back.
type transformError struct{ err error }

func (e *transformError) Error() string { return e.err.Error() }

func (e *transformError) Unwrap() error { return e.err }

// transformFailed is the answer for a value that could not be transformed back.
func transformFailed(err error) error {
	if isUnavailable(err) {
		return storeerror.OfRead(err)
	}
	return storage.NewInternalError(err)
}

// transform turns a stored value into the codec's input. It fails with a transformError.
func (s *Store) transform(ctx context.Context, key string, value []byte) ([]byte, error) {
	data, _, err := s.transformer.TransformFromStorage(ctx, value, keyContext(key))
	if err != nil {
		return nil, &transformError{err}
	}
	return data, nil
}

func storedItem(item *raftstore.Item) objectcache.Stored {
	return objectcache.Stored{Key: item.Key, Value: item.Value, Revision: item.ModRevision}
}

// shared returns a stored object that all its readers share. It is decoded for the first of them.
// So the end of that request must not end the decoding.
func (s *Store) shared(ctx context.Context, of objectcache.Stored) (*objectcache.Object, error) {
	if s.marked(of) {
		o := s.unread.shared(s.objects, of)
		if _, err := o.Decoded(); err != nil {
			return nil, err
		}
		return o, nil
	}
	return s.objects.Get(of, func(of objectcache.Stored) (runtime.Object, error) {
		return s.decodeStored(context.WithoutCancel(ctx), of)
	})
}

// decodeStored returns a stored object that is the caller's own.
func (s *Store) decodeStored(ctx context.Context, of objectcache.Stored) (runtime.Object, error) {
	data, err := s.transform(ctx, of.Key, of.Value)
	if err != nil {
		return nil, err
	}
	return s.decode(ctx, of.Key, data, of.Revision, nil)
}

// peek returns a stored object that was decoded for another reader, nil if there is none.
func (s *Store) peek(of objectcache.Stored) *objectcache.Object {
	if s.objects == nil {
		return nil
	}
	return s.objects.Peek(of)
}

// assign makes out the object, which is given up.
func assign(out, obj runtime.Object) error {
	to, err := conversion.EnforcePtr(out)
	if err != nil {
		return fmt.Errorf("unable to convert output object to pointer: %w", err)
	}
	from := reflect.ValueOf(obj)
	if from.Type() != reflect.TypeOf(out) {
		return fmt.Errorf("a %T is stored where a %T is read", obj, out)
	}
	to.Set(from.Elem())
	return nil
}

package storage

import (
	"context"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/barque/barque/raftstore"
)

// Companions adds to each write of an object operations in the same transaction: neither exists
// without the other, after any crash or lost answer. Every write has them: also the delete that
// ends an update, and those of a namespace's end.
type Companions interface {
	// Of returns the companions of the change from old to obj. old is the stored object, with its
	// resourceVersion, nil for a creation; obj is nil for a deletion.
	Of(ctx context.Context, old, obj runtime.Object) (Companion, error)
	// Refused handles a precondition of Of that did not hold for a creation or an update. It may
	// change obj. Then Of is called again, and obj is written as it is now, unless Refused fails.
	Refused(ctx context.Context, old, obj runtime.Object, conflict *raftstore.ConflictError) error
}

// Companion is a part of a transaction.
type Companion struct {
	Require []raftstore.Precondition
	Ops     []raftstore.Op
}

// companionsOf returns the companions of the write of obj over a state, nil for a deletion, and the
// stored object, which is decoded anew: callers of an update may have changed the state's.
func (s *Store) companionsOf(
	ctx context.Context, key string, was *state, obj runtime.Object,
) (runtime.Object, Companion, error) {
	// An object that cannot be read is deleted unread. Its companions are left.
	if s.companions == nil || obj == nil && was.obj == nil {
		return nil, Companion{}, nil
	}
	var old runtime.Object
	if was.revision != 0 {
		old = s.newObject()
		if err := s.decodeInto(ctx, key, was.data, was.revision, old); err != nil {
			return nil, Companion{}, err
		}
	}
	with, err := s.companions.Of(ctx, old, obj)
	return old, with, err
}

// Objects reads and writes objects of one resource for transactions of another one.
type Objects struct {
	store  *Store
	prefix string
}

// Objects returns the Objects of this resource.
func (s *Store) Objects() *Objects {
	return &Objects{store: s, prefix: path.Join(s.pathPrefix, s.resourcePrefix) + "/"}
}

// Prefix is the prefix of the keys of all objects.
func (o *Objects) Prefix() string { return o.prefix }

// Key is the key of an object. In a namespace its name is namespace/name.
func (o *Objects) Key(name string) string { return o.prefix + name }

// Name is the name of the object at a key.
func (o *Objects) Name(key string) string { return strings.TrimPrefix(key, o.prefix) }

// Put is the operation that writes an object. It takes obj's resourceVersion away.
func (o *Objects) Put(ctx context.Context, name string, obj runtime.Object) (raftstore.Op, error) {
	key := o.Key(name)
	data, err := o.store.encode(obj)
	if err != nil {
		return raftstore.Op{}, err
	}
	value, err := o.store.transformer.TransformToStorage(ctx, data, keyContext(key))
	if err != nil {
		return raftstore.Op{}, storage.NewInternalError(err)
	}
	return raftstore.Op{Kind: raftstore.Put, Key: key, Value: value}, nil
}

// Decode reads an object from its item.
func (o *Objects) Decode(ctx context.Context, item raftstore.Item, into runtime.Object) error {
	data, _, err := o.store.transformer.TransformFromStorage(ctx, item.Value, keyContext(item.Key))
	if err != nil {
		return storage.NewInternalError(err)
	}
	return o.store.decodeInto(ctx, item.Key, data, item.ModRevision, into)
}

package storage

import (
	"bytes"
	"context"
	"fmt"

	"github.com/barque/barque/raftstore"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// Create implements storage.Interface.
func (s *Store) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	key, err := s.prepareKey(key, false)
	if err != nil {
		return err
	}
	if version, err := s.versioner.ObjectResourceVersion(obj); err == nil && version != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}
	data, err := s.encode(obj)
	if err != nil {
		return err
	}
	data, revision, conflict, err := s.put(ctx, "create", key, &state{}, obj, data, ttl)
	if err != nil {
		return err
	}
	if conflict != nil {
		return storage.NewKeyExistsError(key, 0)
	}
	if out == nil {
		return nil
	}
	return s.decodeInto(ctx, key, data, revision, out)
}

// put writes an object, as encoded in data, over a state, together with its companions. When one
// of these is refused, it may change the object and try again. It returns what was stored.
func (s *Store) put(
	ctx context.Context, verb, key string, was *state, obj runtime.Object, data []byte, ttl uint64,
) (stored []byte, revision uint64, conflict *raftstore.ConflictError, err error) {
	for {
		value, err := s.transformer.TransformToStorage(ctx, data, keyContext(key))
		if err != nil {
			return nil, 0, nil, storage.NewInternalError(err)
		}
		old, with, err := s.companionsOf(ctx, key, was, obj)
		if err != nil {
			return nil, 0, nil, err
		}
		op := raftstore.Op{Kind: raftstore.Put, Key: key, Value: value, TTL: seconds(ttl)}
		revision, conflict, err := s.write(ctx, verb, op, was.revision, with)
		if err != nil || conflict == nil || conflict.Key == key {
			return data, revision, conflict, err
		}
		if err := s.companions.Refused(ctx, old, obj, conflict); err != nil {
			return nil, 0, nil, err
		}
		if data, err = s.encode(obj); err != nil {
			return nil, 0, nil, err
		}
	}
}

// Delete implements storage.Interface.
func (s *Store) Delete(
	ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, suggestion runtime.Object, opts storage.DeleteOptions,
) error {
	key, err := s.prepareKey(key, false)
	if err != nil {
		return err
	}
	objType, err := conversion.EnforcePtr(out)
	if err != nil {
		return fmt.Errorf("unable to convert output object to pointer: %w", err)
	}
	reader := &stateReader{store: s, key: key, objType: objType, wantCorrupt: s.nameCorrupt && opts.ExpectTransformOrDecodeError}

	st, err := reader.first(ctx, suggestion)
	for {
		if err != nil {
			return err
		}
		if err := mayDelete(ctx, key, st, preconditions, validate); err != nil {
			if st, err = reader.retry(ctx, st, err); err != nil {
				return err
			}
			continue
		}
		_, with, err2 := s.companionsOf(ctx, key, st, nil)
		if err2 != nil {
			return err2
		}
		revision, conflict, err2 := s.write(ctx, "delete", raftstore.Op{Kind: raftstore.Delete, Key: key}, st.revision, with)
		if err2 != nil {
			return err2
		}
		if conflict != nil && conflict.Key != key {
			st, err = reader.newest(ctx)
			continue
		}
		if conflict != nil {
			st, err = reader.currentItem(ctx, conflict.Current)
			continue
		}
		if reader.wantCorrupt {
			return nil
		}
		return s.decodeInto(ctx, key, st.data, revision, out)
	}
}

func mayDelete(ctx context.Context, key string, st *state, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc) error {
	if preconditions != nil {
		if err := preconditions.Check(key, st.obj); err != nil {
			return err
		}
	}
	return validate(ctx, st.obj)
}

// GuaranteedUpdate implements storage.Interface.
func (s *Store) GuaranteedUpdate(
	ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, suggestion runtime.Object,
) error {
	key, err := s.prepareKey(key, false)
	if err != nil {
		return err
	}
	objType, err := conversion.EnforcePtr(destination)
	if err != nil {
		return fmt.Errorf("unable to convert output object to pointer: %w", err)
	}
	reader := &stateReader{store: s, key: key, objType: objType, ignoreNotFound: ignoreNotFound}

	st, err := reader.first(ctx, suggestion)
	for {
		if err != nil {
			return err
		}
		updated, ttl, err2 := applyUpdate(key, st, preconditions, tryUpdate)
		if err2 != nil {
			st, err = reader.retry(ctx, st, err2)
			continue
		}
		data, err2 := s.encode(updated)
		if err2 != nil {
			return err2
		}
		if !st.stale && st.revision != 0 && bytes.Equal(data, st.data) {
			// Nothing to write, if this is what really stands in the store.
			if !st.current {
				seen := st.revision
				if st, err = reader.newest(ctx); err != nil || st.revision != seen {
					continue
				}
			}
			return s.decodeInto(ctx, key, st.data, st.revision, destination)
		}
		data, revision, conflict, err2 := s.put(ctx, "update", key, st, updated, data, ttl)
		if err2 != nil {
			return err2
		}
		if conflict != nil {
			st, err = reader.currentItem(ctx, conflict.Current)
			continue
		}
		return s.decodeInto(ctx, key, data, revision, destination)
	}
}

// applyUpdate computes the new object from a state.
func applyUpdate(key string, st *state, preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc) (runtime.Object, uint64, error) {
	if err := preconditions.Check(key, st.obj); err != nil {
		return nil, 0, err
	}
	updated, ttl, err := tryUpdate(st.obj, st.meta())
	if err != nil {
		return nil, 0, err
	}
	if ttl == nil {
		return updated, 0, nil
	}
	return updated, *ttl, nil
}

package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/barque/barque/apiserver/leaderterm"
	"github.com/barque/barque/apiserver/rawlist"
	"github.com/barque/barque/apiserver/storeerror"
	"github.com/barque/barque/raftstore"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/barque/barque/internal/stackroom"
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
	conflict, err := s.put(ctx, "create", key, &state{}, obj, data, ttl, out)
	if conflict != nil {
		return storage.NewKeyExistsError(key, 0)
	}
	return err
}

// put writes an object, as encoded in data, over a state, together with its companions. When one of
// these is refused, it may change the object and try again. out gets the stored object, unless it
// is nil.
func (s *Store) put(
	ctx context.Context, verb, key string, was *state, obj runtime.Object, data []byte, ttl uint64, out runtime.Object,
) (conflict *raftstore.ConflictError, err error) {
	for {
		stored, decoded := s.mark(ctx, key, data, obj, out)
		value, guard, err := s.seal(ctx, key, stored)
		if err != nil {
			return nil, err
		}
		old, with, err := s.companionsOf(ctx, key, was, obj)
		if err != nil {
			return nil, err
		}
		op := raftstore.Op{Kind: raftstore.Put, Key: key, Value: value, TTL: seconds(ttl)}
		revision, conflict, err := s.write(ctx, verb, op, was.revision, with, guard)
		switch {
		case err != nil || conflict != nil && conflict.Key == key:
			return conflict, err
		case conflict == nil && decoded:
			return nil, s.versioner.UpdateObject(out, revision)
		case conflict == nil && out != nil:
			return nil, s.decodeInto(ctx, key, data, revision, out)
		case conflict == nil:
			return nil, nil
		case guard.Key != "" && conflict.Key == guard.Key:
			if err := s.sealer.Renew(ctx); err != nil {
				return nil, storeerror.OfRead(err)
			}
			continue // nothing was written, and the object is as it was
		}
		if err := s.companions.Refused(ctx, old, obj, conflict); err != nil {
			return nil, err
		}
		if data, err = s.encode(obj); err != nil {
			return nil, err
		}
	}
}

// write commits one operation on a key that must be at a revision, 0 for absent, with its
// companions. A conflict is not an error: it is returned for the caller to go on from the current
// value. The key's own precondition is checked first, and the guard's, if it has a key, last.
func (s *Store) write(
	ctx context.Context, verb string, op raftstore.Op, atRevision uint64, with Companion, guard raftstore.Precondition,
) (uint64, *raftstore.ConflictError, error) {
	start := time.Now()
	if err := s.begin(ctx); err != nil {
		return 0, nil, storeerror.OfWrite(err)
	}
	require := append(make([]raftstore.Precondition, 0, 2+len(with.Require)),
		raftstore.Precondition{Key: op.Key, ModRevision: atRevision})
	require = append(require, with.Require...)
	if guard.Key != "" {
		require = append(require, guard)
	}
	result, err := s.backend.Commit(ctx, raftstore.Txn{
		Require: require,
		Ops:     append([]raftstore.Op{op}, with.Ops...),
		Term:    leaderterm.Of(ctx),
	})
	var conflict *raftstore.ConflictError
	if errors.As(err, &conflict) {
		s.account(ctx, verb, start, nil)
		return 0, conflict, nil
	}
	s.account(ctx, verb, start, err)
	if err != nil {
		return 0, nil, storeerror.OfWrite(err)
	}
	return result.Revision, nil, nil
}

// encode makes the stored form of an object: without resourceVersion, encoded but not transformed.
func (s *Store) encode(obj runtime.Object) ([]byte, error) {
	if err := s.versioner.PrepareObjectForStorage(obj); err != nil {
		return nil, fmt.Errorf("prepare object for storage: %w", err)
	}
	encoder, ok := s.encoder.(runtime.EncoderWithAllocator)
	if !ok {
		return runtime.Encode(s.encoder, obj)
	}
	var to piece
	if err := encoder.EncodeWithAllocator(obj, &to, &to); err != nil {
		return nil, err
	}
	return to.data, nil
}

// piece is the output of an encoder. An encoder that allocates memory of about the right size and
// writes that, as protobuf's does with an object, need not have it copied: it is kept as it is.
type piece struct {
	given []byte // the memory that was allocated last, and has not been written yet
	data  []byte
}

// Allocate implements runtime.MemoryAllocator. The memory is the caller's alone.
func (p *piece) Allocate(n uint64) []byte {
	p.given = make([]byte, n)
	return p.given
}

// pieceSlack is the surplus of the memory that protobuf's encoder allocates: it takes the length of
// the message for a number of eight bytes, and one has at least one.
const pieceSlack = 7

// Write implements io.Writer.
func (p *piece) Write(b []byte) (int, error) {
	spare := len(p.given) - len(b)
	if given := p.given; p.data == nil && len(b) > 0 && spare >= 0 && spare <= pieceSlack && &b[0] == &given[0] {
		p.given, p.data = nil, b[:len(b):len(b)]
		return len(b), nil
	}
	p.data = append(p.data, b...)
	return len(b), nil
}

// seconds makes a duration of a TTL as the registries give it.
func seconds(ttl uint64) time.Duration { return time.Duration(ttl) * time.Second }

// Delete implements storage.Interface.
func (s *Store) Delete(
	ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, suggestion runtime.Object, opts storage.DeleteOptions,
) error {
	stackroom.Grow() // see GuaranteedUpdate
	key, err := s.prepareKey(key, false)
	if err != nil {
		return err
	}
	objType, err := conversion.EnforcePtr(out)
	if err != nil {
		return fmt.Errorf("unable to convert output object to pointer: %w", err)
	}
	reader := &stateReader{store: s, key: key, objType: objType,
		wantCorrupt: s.nameCorrupt && opts.ExpectTransformOrDecodeError}

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
		revision, conflict, err2 := s.write(ctx, "delete", raftstore.Op{Kind: raftstore.Delete, Key: key}, st.revision,
			with, raftstore.Precondition{})
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

func mayDelete(
	ctx context.Context, key string, st *state, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc,
) error {
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
	stackroom.Grow() // the handler has started a goroutine, which has not gone deep yet
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
		if !st.stale && st.revision != 0 && bytes.Equal(data, rawlist.Unmarked(st.data)) {
			// Nothing to write, if this is the stored object.
			if !st.current {
				seen := st.revision
				if st, err = reader.newest(ctx); err != nil || st.revision != seen {
					continue
				}
			}
			return s.decodeInto(ctx, key, st.data, st.revision, destination)
		}
		conflict, err2 := s.put(ctx, "update", key, st, updated, data, ttl, destination)
		if conflict == nil {
			return err2
		}
		st, err = reader.currentItem(ctx, conflict.Current)
	}
}

// applyUpdate computes the new object from a state.
func applyUpdate(
	key string, st *state, preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc,
) (runtime.Object, uint64, error) {
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

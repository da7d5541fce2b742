package storage

import (
	"context"
	"reflect"

	"github.com/barque/barque/raftstore"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// state is the input of a write.
type state struct {
	obj      runtime.Object // nil for an object that is to be deleted unread
	revision uint64         // of the newest change of the key; 0 when it is absent
	data     []byte         // as encoded in the store, transformed back
	stale    bool           // the value must be rewritten even when nothing changes
	// current reports that this state has all writes that were acknowledged before the request. A
	// state that is not current can still be written from, since writes are guarded by its
	// revision, but no request may be refused because of it.
	current bool
}

func (st *state) meta() storage.ResponseMeta {
	return storage.ResponseMeta{ResourceVersion: st.revision}
}

// stateReader reads the state of one key.
type stateReader struct {
	store          *Store
	key            string
	objType        reflect.Value // of the kind of object wanted
	ignoreNotFound bool
	// wantCorrupt accepts only an object that cannot be read.
	wantCorrupt bool
}

// first returns a state to begin with: this server's, without a request to the leader. The
// suggestion is used when it is of the same revision, which saves decoding.
func (r *stateReader) first(ctx context.Context, suggestion runtime.Object) (*state, error) {
	if r.wantCorrupt {
		return r.newest(ctx)
	}
	view, err := r.store.view(ctx, "get", raftstore.ViewOptions{Stale: true})
	if err != nil {
		return nil, err
	}
	item, ok := view.Get(r.key)
	if !ok {
		return r.newest(ctx)
	}
	st, err := r.fromItem(ctx, &item, suggestion)
	if err != nil {
		return r.newest(ctx)
	}
	return st, nil
}

// newest returns the state that reflects every write acknowledged before now.
func (r *stateReader) newest(ctx context.Context) (*state, error) {
	view, err := r.store.view(ctx, "get", raftstore.ViewOptions{})
	if err != nil {
		return nil, err
	}
	var found *raftstore.Item
	if item, ok := view.Get(r.key); ok {
		found = &item
	}
	return r.currentItem(ctx, found)
}

// currentItem returns the state of an item that was read now; nil stands for an absent key.
func (r *stateReader) currentItem(ctx context.Context, item *raftstore.Item) (*state, error) {
	st, err := r.fromItem(ctx, item, nil)
	if err != nil {
		return nil, err
	}
	st.current = true
	return st, nil
}

func (r *stateReader) fromItem(ctx context.Context, item *raftstore.Item, suggestion runtime.Object) (*state, error) {
	if item == nil {
		if !r.ignoreNotFound {
			return nil, storage.NewKeyNotFoundError(r.key, 0)
		}
		st := &state{obj: r.emptyObject()}
		return st, runtime.SetZeroValue(st.obj)
	}
	st := &state{revision: item.ModRevision}
	var err error
	st.data, st.stale, err = r.store.transformer.TransformFromStorage(ctx, item.Value, keyContext(r.key))
	if err != nil {
		if r.wantCorrupt && !isUnavailable(err) {
			return st, nil
		}
		return nil, transformFailed(err)
	}
	if suggestion != nil {
		if revision, err := r.store.versioner.ObjectResourceVersion(suggestion); err == nil &&
			revision == item.ModRevision {
			st.obj = suggestion
			return st, nil
		}
	}
	if o := r.store.peek(storedItem(item)); o != nil && !r.wantCorrupt {
		st.obj = o.GetObject()
		return st, nil
	}
	obj := r.emptyObject()
	if err := r.store.decodeInto(ctx, r.key, st.data, st.revision, obj); err != nil {
		if r.wantCorrupt {
			return st, nil
		}
		return nil, err
	}
	if r.wantCorrupt {
		return nil, storage.NewInvalidObjError(r.key, "it can be read, so it must not be deleted as one that cannot")
	}
	st.obj = obj
	return st, nil
}

func (r *stateReader) emptyObject() runtime.Object {
	if u, ok := r.objType.Addr().Interface().(runtime.Unstructured); ok {
		return u.NewEmptyInstance()
	}
	return reflect.New(r.objType.Type()).Interface().(runtime.Object)
}

// retry handles an error that a caller's function made of a state. When the state was current, the
// error stands. When a newer one exists, the caller is to try again with it.
func (r *stateReader) retry(ctx context.Context, st *state, err error) (*state, error) {
	if st.current {
		return nil, err
	}
	newest, readErr := r.newest(ctx)
	if readErr != nil {
		return nil, readErr
	}
	if newest.revision == st.revision {
		return nil, err
	}
	return newest, nil
}

package storage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/barque/barque/raftstore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	endpointsrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
)

// keyContext authenticates a value by the key under which it is stored, so that an encrypted value
// moved to another key does not decrypt.
type keyContext string

// AuthenticatedData implements value.Context.
func (k keyContext) AuthenticatedData() []byte { return []byte(k) }

// Get implements storage.Interface.
func (s *Store) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	key, err := s.prepareKey(key, false)
	if err != nil {
		return err
	}
	view, err := s.viewNotOlder(ctx, "get", opts.ResourceVersion)
	if err != nil {
		return err
	}
	item, ok := view.Get(key)
	if !ok {
		if opts.IgnoreNotFound {
			return runtime.SetZeroValue(out)
		}
		return storage.NewKeyNotFoundError(key, 0)
	}
	data, _, err := s.transformer.TransformFromStorage(ctx, item.Value, keyContext(key))
	if err != nil {
		return corruptOr(key, err, storage.NewInternalError(err))
	}
	if err := s.decodeInto(ctx, key, data, item.ModRevision, out); err != nil {
		return corruptOr(key, err, err)
	}
	return nil
}

// preferNewest is how long a read that takes any snapshot waits for the newest one.
const preferNewest = time.Second

// viewNotOlder returns a snapshot at least as new as a resourceVersion: "" demands the newest; "0"
// prefers it, and takes what this server has when there is nobody to ask.
func (s *Store) viewNotOlder(ctx context.Context, verb, resourceVersion string) (raftstore.View, error) {
	if resourceVersion == "" {
		return s.view(ctx, verb, raftstore.ViewOptions{})
	}
	revision, err := s.versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	if revision == 0 {
		return s.viewAny(ctx, verb)
	}
	view, err := s.view(ctx, verb, raftstore.ViewOptions{Stale: true})
	if err != nil || view.Revision() >= revision {
		return view, err
	}
	// This server is behind, or the revision does not exist. The newest snapshot tells which.
	view, err = s.view(ctx, verb, raftstore.ViewOptions{})
	if err != nil {
		return nil, err
	}
	if view.Revision() < revision {
		return nil, storage.NewTooLargeResourceVersionError(revision, view.Revision(), 0)
	}
	return view, nil
}

// viewAny returns the newest snapshot, or else what this server has. Whoever can live with any
// takes it from the watch cache; what comes here are the resources without one, and a client that
// has just written through a server that follows expects to see it there.
func (s *Store) viewAny(ctx context.Context, verb string) (raftstore.View, error) {
	short, cancel := context.WithTimeout(ctx, preferNewest)
	defer cancel()
	view, err := s.view(short, verb, raftstore.ViewOptions{})
	if err == nil || ctx.Err() != nil {
		return view, err
	}
	return s.view(ctx, verb, raftstore.ViewOptions{Stale: true})
}

// viewAt returns the snapshot at exactly a revision. It fails with raftstore.ErrCompacted, or with
// an API error.
func (s *Store) viewAt(ctx context.Context, verb string, revision uint64) (raftstore.View, error) {
	view, err := s.view(ctx, verb, raftstore.ViewOptions{Revision: revision})
	if !errors.Is(err, raftstore.ErrFutureRevision) {
		return view, err
	}
	newest, err := s.view(ctx, verb, raftstore.ViewOptions{Stale: true})
	if err != nil {
		return nil, err
	}
	return nil, storage.NewTooLargeResourceVersionError(revision, newest.Revision(), 0)
}

// decodeInto decodes a transformed value into out and sets its resourceVersion.
func (s *Store) decodeInto(ctx context.Context, key string, data []byte, revision uint64, out runtime.Object) error {
	if _, err := conversion.EnforcePtr(out); err != nil {
		return fmt.Errorf("unable to convert output object to pointer: %w", err)
	}
	_, err := s.decode(ctx, key, data, revision, out)
	return err
}

// decode decodes a transformed value, into the object given unless that is nil, and returns it.
func (s *Store) decode(ctx context.Context, key string, data []byte, revision uint64, into runtime.Object) (runtime.Object, error) {
	start := time.Now()
	obj, _, err := s.codec.Decode(data, nil, into)
	endpointsrequest.TrackDecodeLatency(ctx, time.Since(start))
	if err != nil {
		metrics.RecordDecodeError(s.groupResource)
		s.log.Debug("stored object cannot be decoded", "key", key, "revision", revision, "error", err)
		if s.nameCorrupt {
			err = &corruptError{what: "it cannot be decoded", revision: revision, err: err}
		}
		return nil, err
	}
	if _, custom := obj.(runtime.Unstructured); !custom {
		// An object in memory does not name its kind, or else the JSON of a list would.
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	if err := s.versioner.UpdateObject(obj, revision); err != nil {
		return nil, fmt.Errorf("set resourceVersion %d of %s: %w", revision, key, err)
	}
	return obj, nil
}

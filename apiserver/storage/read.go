package storage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/barque/barque/apiserver/storeerror"
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
	if s.objects != nil {
		o, err := s.shared(ctx, storedItem(&item))
		if err != nil {
			return getError(key, err)
		}
		return assign(out, o.GetObject())
	}
	data, err := s.transform(ctx, key, item.Value)
	if err == nil {
		err = s.decodeInto(ctx, key, data, item.ModRevision, out)
	}
	return getError(key, err)
}

// getError makes an answer of why an object could not be read.
func getError(key string, err error) error {
	var transform *transformError
	if errors.As(err, &transform) {
		return corruptOr(key, transform.err, transformFailed(transform.err))
	}
	return corruptOr(key, err, err)
}

// neverRead is why even an old state cannot be shown.
const neverRead = "this server has not read the newest state since it was started"

// preferNewest is how long a read that takes any snapshot waits for the newest one.
const preferNewest = time.Second

// viewNotOlder returns a snapshot at least as new as a resourceVersion: "" demands the newest, and
// "0" takes any.
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
	// This server is behind, or the revision does not exist. The newest snapshot shows which.
	view, err = s.view(ctx, verb, raftstore.ViewOptions{})
	if err != nil {
		return nil, err
	}
	if view.Revision() < revision {
		return nil, s.tooLarge(revision, view.Revision())
	}
	return view, nil
}

// viewAny returns a snapshot for requests that accept any. It is this server's state, once that is
// no older than the newest state was when the Store was made: a server that starts with the state
// of an old snapshot would show clients a past that they have left behind.
//
// Without decoded objects, as for events, it is the newest one while there is a leader. A client
// that has just written through a server that follows expects to see it there.
func (s *Store) viewAny(ctx context.Context, verb string) (raftstore.View, error) {
	if s.objects != nil {
		view, err := s.view(ctx, verb, raftstore.ViewOptions{Stale: s.caughtUp.Load()})
		if errors.Is(err, raftstore.ErrLeaderless) {
			// A client that accepts any state, as informers do, waits with a retry and keeps its
			// state.
			err = apierrors.NewTooManyRequests(neverRead+": "+err.Error(), storeerror.RetryAfterSeconds)
		}
		return view, err
	}
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
	return nil, s.tooLarge(revision, newest.Revision())
}

// tooLarge is the error of a revision that does not exist yet. As in Kubernetes, clients get a
// Retry-After where objects are kept.
func (s *Store) tooLarge(revision, newest uint64) error {
	retry := 0
	if s.objects != nil {
		retry = storeerror.RetryAfterSeconds
	}
	return storage.NewTooLargeResourceVersionError(revision, newest, retry)
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
func (s *Store) decode(
	ctx context.Context, key string, data []byte, revision uint64, into runtime.Object,
) (runtime.Object, error) {
	start := time.Now()
	obj, _, err := s.codec.Decode(data, nil, into)
	endpointsrequest.TrackDecodeLatency(ctx, time.Since(start))
	if err != nil {
		metrics.RecordDecodeError(s.groupResource)
		s.log.Debug("stored object cannot be decoded", "key", key, "revision", revision, "err", err)
		if s.nameCorrupt && !(s.custom && isCustomObject(data)) {
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

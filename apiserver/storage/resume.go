package storage

import (
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
)

// resuming is a watch cache whose watches reach as far back as the store's history does.
//
// The cache knows what has happened since this server started. A client that comes from another
// server, which was stopped or has died, may have seen less than that; it would be told to list
// everything anew, and so would all the others that came with it. The store's history is part of
// the replicated state and outlives restarts: a watch that is too old for the cache is read from
// there, until it has caught up and goes on in the cache (catchup.go).
type resuming struct {
	*cacher.CacheDelegator
	store *Store
	cache *cacher.Cacher // what the delegator asks
}

// Get implements storage.Interface. As with the store, a resourceVersion that is none is the
// client's fault.
func (r *resuming) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	err := r.CacheDelegator.Get(ctx, key, opts, out)
	if storage.IsInvalidError(err) {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	return err
}

// Watch implements storage.Interface.
func (r *resuming) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if isDirect(ctx) {
		return r.store.Watch(ctx, key, opts)
	}
	w, err := r.CacheDelegator.Watch(ctx, key, opts)
	if err != nil {
		return nil, watchError(err, r.store.groupResource)
	}
	if opts.SendInitialEvents != nil || opts.ResourceVersion == "" || opts.ResourceVersion == "0" {
		return w, nil
	}
	w, refused := refusal(w)
	if !refused {
		return w, nil
	}
	w.Stop()
	return r.catchUp(ctx, key, opts)
}

// refusal tells whether the cache has refused the watch because it asks for too old a revision. The
// cache says so by the one event of a watch that has ended at once; that event is put back. A watch
// that goes on has room for more than one event, and is not touched.
func refusal(w watch.Interface) (watch.Interface, bool) {
	events := w.ResultChan()
	if cap(events) != 1 || len(events) != 1 {
		return w, false
	}
	event, ok := <-events
	if !ok {
		return w, false
	}
	status, is := event.Object.(*metav1.Status)
	again := make(chan watch.Event, 1)
	again <- event
	close(again)
	ended := watch.NewProxyWatcher(again)
	return ended, event.Type == watch.Error && is && status.Code == http.StatusGone
}

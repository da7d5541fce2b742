package storage

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// catchingUp is a watch that begins in the store's history and goes on in the watch cache:
//
//	history ──a bookmark: everything up to here was told──▶ cache
//	   ▲                                                     │
//	   └────the cache does not reach back as far as that─────┘ until the next bookmark
//
// A watch of the store decodes each object once more and is asked for progress by everybody who
// reads, so it is for what the client has missed and no longer. Only at a bookmark nothing of the
// same revision is still to come.
//
// Its goroutine ends with Stop, with the request's context, or with the watch that it passes on.
type catchingUp struct {
	cancel    context.CancelFunc
	result    chan watch.Event
	bookmarks bool // whether the client wants them
	// cached returns the watch of the cache from a revision on, nil when the cache is too young for
	// that.
	cached func(revision string) watch.Interface
}

// catchUp returns a watch from a revision for which the cache is too young.
func (r *resuming) catchUp(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	source, err := r.store.Watch(Direct(ctx), key, opts) // which tells at once how far it is
	if err != nil {
		cancel()
		return nil, err
	}
	c := &catchingUp{cancel: cancel, result: make(chan watch.Event, watchBuffer), bookmarks: opts.Predicate.AllowWatchBookmarks}
	c.cached = func(revision string) watch.Interface {
		opts := opts
		opts.ResourceVersion = revision
		w, err := r.CacheDelegator.Watch(ctx, key, opts)
		if err != nil {
			return nil
		}
		w, refused := refusal(w)
		if refused {
			w.Stop()
			return nil
		}
		return w
	}
	go c.run(ctx, source)
	return c, nil
}

// Stop implements watch.Interface.
func (c *catchingUp) Stop() { c.cancel() }

// ResultChan implements watch.Interface.
func (c *catchingUp) ResultChan() <-chan watch.Event { return c.result }

// run passes events on: those of the store, and those of the cache from where they are the same.
func (c *catchingUp) run(ctx context.Context, store watch.Interface) {
	defer close(c.result)
	defer c.cancel()
	defer store.Stop()
	for event := range store.ResultChan() {
		if event.Type != watch.Bookmark {
			if !c.send(ctx, event) {
				return
			}
			continue
		}
		if c.bookmarks && !c.send(ctx, event) {
			return
		}
		about, err := meta.Accessor(event.Object)
		if err != nil {
			continue
		}
		if w := c.cached(about.GetResourceVersion()); w != nil {
			store.Stop()
			defer w.Stop()
			for event := range w.ResultChan() {
				if !c.send(ctx, event) {
					return
				}
			}
			return
		}
	}
}

// send returns whether the client is still there.
func (c *catchingUp) send(ctx context.Context, event watch.Event) bool {
	select {
	case c.result <- event:
		return true
	case <-ctx.Done():
		return false
	}
}

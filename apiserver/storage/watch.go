package storage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/barque/barque/raftstore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
)

// watchBuffer is how many events a watch holds for a consumer that is busy. Beyond it the watch
// stops reading; the store's history is the long buffer.
const watchBuffer = 100

// watchError makes an answer of an error. A resourceVersion that is none is the client's fault; the
// registries do not tell it from a fault of the server.
func watchError(err error, resource schema.GroupResource) error {
	return storeerr.InterpretWatchError(err, resource, "")
}

// Watch implements storage.Interface.
func (s *Store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	key, err := s.prepareKey(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	revision, err := s.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, watchError(err, s.groupResource)
	}
	direct := isDirect(ctx)
	if (opts.ProgressNotify || direct) && s.newObject == nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("a watch of %s cannot notify progress: its storage was made without a New function", s.groupResource))
	}

	listWatch := utilfeature.DefaultFeatureGate.Enabled(features.WatchList)
	wantInitial := opts.SendInitialEvents != nil && *opts.SendInitialEvents && listWatch
	if revision == 0 && listWatch && opts.SendInitialEvents != nil && !*opts.SendInitialEvents {
		// Only what happens from now on: "now" must not be before writes already acknowledged.
		view, err := s.view(ctx, "getCurrentResourceVersion", raftstore.ViewOptions{})
		if err != nil {
			return nil, err
		}
		revision = view.Revision()
	}

	w := &watcher{
		store:           s,
		key:             key,
		recursive:       opts.Recursive,
		pred:            opts.Predicate,
		acceptAll:       opts.Predicate.Empty(),
		progress:        opts.ProgressNotify || direct,
		tellsBegin:      direct,
		timestamps:      opts.RecordTimestamps,
		after:           revision,
		initial:         wantInitial || (opts.SendInitialEvents == nil && revision == 0),
		initialBookmark: wantInitial && opts.Predicate.AllowWatchBookmarks,
		result:          make(chan watch.Event, watchBuffer),
	}
	ctx, w.cancel = context.WithCancel(ctx)
	go w.run(ctx)
	// The watches that clients open against a cached resource are initialized by the cache; this
	// one is ready as soon as it is open.
	utilflowcontrol.WatchInitialized(ctx)
	return w, nil
}

// watcher is one watch. Its goroutine ends when Stop is called, when the request's context is
// done, or after an error event; the result channel is closed when it has ended.
type watcher struct {
	store           *Store
	key             string // the key, or the prefix of the keys, in the store
	recursive       bool
	pred            storage.SelectionPredicate
	acceptAll       bool
	progress        bool
	tellsBegin      bool // its progress, as soon as it can be asked for that
	timestamps      bool
	after           uint64 // the last revision that the consumer knows
	initial         bool   // begin with what exists
	initialBookmark bool   // and mark where that ends

	cancel    context.CancelFunc
	result    chan watch.Event
	source    raftstore.Watcher
	delivered atomic.Uint64 // the revision up to which everything is in result
}

// Stop implements watch.Interface.
func (w *watcher) Stop() { w.cancel() }

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.result }

func (w *watcher) run(ctx context.Context) {
	defer close(w.result)
	defer w.cancel()
	err := w.stream(ctx)
	if ctx.Err() != nil || errors.Is(err, raftstore.ErrClosed) {
		// The consumer has gone, or this server is about to: the end of the stream says it all.
		return
	}
	select {
	case w.result <- errorEvent(err):
	case <-ctx.Done():
	}
}

// stream sends events until something ends it, and returns what.
func (w *watcher) stream(ctx context.Context) error {
	if w.initial {
		if err := w.sendInitial(ctx); err != nil {
			return err
		}
	}
	opts := raftstore.WatchOptions{Prefix: w.key, After: w.after}
	if w.progress {
		opts.Progress = w.store.progress
	}
	source, err := w.store.backend.Watch(opts)
	if err != nil {
		return err
	}
	defer source.Close()
	w.source = source
	w.delivered.Store(w.after)
	if w.progress {
		if err := w.store.track(w); err != nil {
			return err
		}
		defer w.store.untrack(w)
	}
	if w.tellsBegin {
		source.RequestProgress() // whoever has asked before was not heard
	}
	for {
		batch, err := source.Next(ctx)
		if err != nil {
			return err
		}
		if err := w.sendBatch(ctx, batch); err != nil {
			return err
		}
		w.delivered.Store(batch.Revision)
	}
}

// sendInitial sends all that exists, as of now, as added.
func (w *watcher) sendInitial(ctx context.Context) error {
	view, err := w.store.view(ctx, "list", raftstore.ViewOptions{})
	if err != nil {
		return err
	}
	if w.after > view.Revision() {
		return storage.NewTooLargeResourceVersionError(w.after, view.Revision(), retryAfterSeconds)
	}
	var failed error
	visit := func(item raftstore.Item) bool {
		obj, err := w.decode(ctx, item.Key, item.Value, item.ModRevision)
		if err == nil && w.matches(obj) {
			err = w.send(ctx, watch.Event{Type: watch.Added, Object: obj})
		}
		failed = err
		return err == nil
	}
	if w.recursive {
		view.Ascend(w.key, w.key, visit)
	} else if item, ok := view.Get(w.key); ok {
		visit(item)
	}
	if failed != nil {
		return failed
	}
	w.after = view.Revision()
	if !w.initialBookmark {
		return nil
	}
	obj, err := w.bookmark(w.after)
	if err != nil {
		return err
	}
	if err := storage.AnnotateInitialEventsEndBookmark(obj); err != nil {
		return fmt.Errorf("mark the end of the initial events of %s: %w", w.key, err)
	}
	return w.send(ctx, watch.Event{Type: watch.Bookmark, Object: w.stamped(obj)})
}

func (w *watcher) sendBatch(ctx context.Context, batch raftstore.Batch) error {
	if len(batch.Events) == 0 {
		if !w.progress {
			return nil
		}
		metrics.RecordEtcdBookmark(w.store.groupResource)
		obj, err := w.bookmark(batch.Revision)
		if err != nil {
			return err
		}
		return w.send(ctx, watch.Event{Type: watch.Bookmark, Object: w.stamped(obj)})
	}
	for i := range batch.Events {
		event := &batch.Events[i]
		if !w.recursive && event.Item.Key != w.key {
			continue
		}
		metrics.RecordEtcdEvent(w.store.groupResource)
		kind, obj, err := w.translate(ctx, event)
		if err != nil {
			return err
		}
		if obj == nil {
			continue
		}
		if err := w.send(ctx, watch.Event{Type: kind, Object: w.stamped(obj)}); err != nil {
			return err
		}
	}
	return nil
}

// translate makes of a change in the store what it is for this watch: an object that begins to
// match is added, one that no longer does is deleted. The object is nil when there is nothing to
// tell.
func (w *watcher) translate(ctx context.Context, event *raftstore.Event) (watch.EventType, runtime.Object, error) {
	item := &event.Item
	if event.Kind == raftstore.Deleted {
		// The object as it was last, with the revision at which it ceased to be.
		obj, err := w.decode(ctx, item.Key, item.Value, item.ModRevision)
		if err != nil {
			return "", nil, deletedError(err)
		}
		if !w.matches(obj) {
			return "", nil, nil
		}
		return watch.Deleted, obj, nil
	}
	obj, err := w.decode(ctx, item.Key, item.Value, item.ModRevision)
	if err != nil {
		return "", nil, err
	}
	if event.Kind == raftstore.Created || event.Prev == nil {
		if !w.matches(obj) {
			return "", nil, nil
		}
		return watch.Added, obj, nil
	}
	if w.acceptAll {
		return watch.Modified, obj, nil
	}
	old, err := w.decode(ctx, item.Key, event.Prev.Value, item.ModRevision)
	if err != nil {
		return "", nil, err
	}
	switch is, was := w.matches(obj), w.matches(old); {
	case is && was:
		return watch.Modified, obj, nil
	case is:
		return watch.Added, obj, nil
	case was:
		return watch.Deleted, old, nil
	}
	return "", nil, nil
}

func (w *watcher) decode(ctx context.Context, key string, value []byte, revision uint64) (runtime.Object, error) {
	data, _, err := w.store.transformer.TransformFromStorage(ctx, value, keyContext(key))
	if err != nil {
		return nil, err
	}
	return w.store.decode(ctx, key, data, revision, nil)
}

func (w *watcher) matches(obj runtime.Object) bool {
	if w.acceptAll {
		return true
	}
	matched, err := w.pred.Matches(obj)
	return err == nil && matched
}

// bookmark makes an object that carries nothing but a revision.
func (w *watcher) bookmark(revision uint64) (runtime.Object, error) {
	obj := w.store.newObject()
	if err := w.store.versioner.UpdateObject(obj, revision); err != nil {
		return nil, fmt.Errorf("set resourceVersion %d of a bookmark: %w", revision, err)
	}
	return obj, nil
}

func (w *watcher) send(ctx context.Context, event watch.Event) error {
	select {
	case w.result <- event:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stamped adds the time of decoding when the consumer, the watch cache, wants to measure from it.
func (w *watcher) stamped(obj runtime.Object) runtime.Object {
	if !w.timestamps {
		return obj
	}
	return &timedObject{Object: obj, time: time.Now()}
}

// timedObject is a storage.WatchEventWithRecordTime.
type timedObject struct {
	runtime.Object
	time time.Time
}

var _ storage.WatchEventWithRecordTime = (*timedObject)(nil)

// RecordTime implements storage.WatchEventWithRecordTime.
func (t *timedObject) RecordTime() time.Time { return t.time }

// Unwrap implements storage.WatchEventWithRecordTime.
func (t *timedObject) Unwrap() runtime.Object { return t.Object }

// DeepCopyObject implements runtime.Object.
func (t *timedObject) DeepCopyObject() runtime.Object {
	return &timedObject{Object: t.Object.DeepCopyObject(), time: t.time}
}

// GetObjectMeta implements metav1.ObjectMetaAccessor.
func (t *timedObject) GetObjectMeta() metav1.Object {
	accessor, err := meta.Accessor(t.Object)
	if err != nil {
		return nil
	}
	return accessor
}

// deletedError says that an object which cannot be read was deleted, if that is so: the consumer
// then knows that it must list again.
func deletedError(err error) error {
	var corrupt *corruptError
	if errors.As(err, &corrupt) {
		return &corruptDeletedError{err: corrupt}
	}
	return err
}

// errorEvent makes the last event of a watch.
func errorEvent(err error) watch.Event {
	var (
		deleted *corruptDeletedError
		status  apierrors.APIStatus
	)
	switch {
	case errors.Is(err, raftstore.ErrCompacted):
		status = apierrors.NewResourceExpired(messageWatchExpired)
	case errors.Is(err, raftstore.ErrUnavailable):
		errors.As(ReadError(err), &status)
	case errors.As(err, &deleted):
		status = &apierrors.StatusError{ErrStatus: metav1.Status{
			Status:  metav1.StatusFailure,
			Code:    http.StatusInternalServerError,
			Reason:  metav1.StatusReasonStoreReadError,
			Message: deleted.Error(),
		}}
	case !errors.As(err, &status):
		status = apierrors.NewInternalError(err)
	}
	object := status.Status()
	return watch.Event{Type: watch.Error, Object: &object}
}

package storage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/barque/barque/apiserver/objectcache"
	"github.com/barque/barque/apiserver/storeerror"
	"github.com/barque/barque/apiserver/watchwriter"
	"github.com/barque/barque/raftstore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
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

// watchError makes an answer of an error. An invalid resourceVersion is the client's fault; the
// registries do not distinguish it from a fault of the server.
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
		return nil,
			apierrors.NewInternalError(
				fmt.Errorf("a watch of %s cannot notify progress: its storage was made without a New function",
					s.groupResource))
	}

	listWatch := utilfeature.DefaultFeatureGate.Enabled(features.WatchList)
	wantInitial := opts.SendInitialEvents != nil && *opts.SendInitialEvents && listWatch
	if revision == 0 && listWatch && opts.SendInitialEvents != nil && !*opts.SendInitialEvents {
		// Only changes from now on: "now" must not be before writes already acknowledged.
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
		bookmarks:       s.objects != nil && opts.Predicate.AllowWatchBookmarks && s.newObject != nil,
		own:             s.objects == nil || direct,
		from:            opts.ResourceVersion,
		after:           revision,
		initial:         wantInitial || (opts.SendInitialEvents == nil && revision == 0),
		initialBookmark: wantInitial && opts.Predicate.AllowWatchBookmarks,
		result:          make(chan watch.Event, watchBuffer),
	}
	if !direct {
		w.stored = newStoredMatcher(s.format, &w.pred)
	}
	ctx, w.cancel = context.WithCancel(ctx)
	go w.run(ctx)
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
	tellsBegin      bool           // its progress, as soon as it can be requested
	bookmarks       bool           // now and then, and before the request's time is over
	own             bool           // objects are the consumer's, and not shared
	stored          *storedMatcher // nil when all objects are decoded
	from            string         // the requested resourceVersion
	after           uint64         // the last revision that the consumer knows
	initial         bool           // begin with the existing objects
	initialBookmark bool           // and mark where that ends

	cancel    context.CancelFunc
	result    chan watch.Event
	source    raftstore.Watcher // set under the lock of the store
	delivered atomic.Uint64     // the revision up to which all events are in result
	turn      atomic.Pointer[watchwriter.Turn]
	events    []watch.Event // of one turn, empty between turns
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
		// The consumer has gone, or this server is about to: the end of the stream is enough.
		return
	}
	select {
	case w.result <- errorEvent(err):
	case <-ctx.Done():
	}
}

// stream sends events until an error ends it, and returns the error.
func (w *watcher) stream(ctx context.Context) error {
	if err := w.store.track(w); err != nil {
		return err
	}
	defer w.store.untrack(w)
	if w.initial {
		if err := w.sendInitial(ctx); err != nil {
			return err
		}
	}
	utilflowcontrol.WatchInitialized(ctx)
	source, err := w.open()
	if err != nil {
		return err
	}
	defer source.Close()
	w.delivered.Store(w.after)
	w.store.mu.Lock()
	w.source = source
	w.store.mu.Unlock()
	if w.tellsBegin {
		source.RequestProgress() // earlier requests for progress were not heard
	}
	if w.bookmarks {
		defer w.remind(ctx, source)()
	}
	for {
		batch, err := source.Next(ctx)
		if err != nil {
			return err
		}
		if turn := w.turn.Load(); turn != nil && turn.Take(ctx) {
			err = w.sendInTurn(ctx, turn, source, batch)
		} else {
			err = w.sendBatch(ctx, batch)
		}
		if err != nil {
			return err
		}
	}
}

// enough is how many bytes of objects a watch sends in a turn: about one frame of HTTP/2.
const enough = 15 << 10

// most is how many events a watch keeps room for between turns.
const most = 2 * watchBuffer

// ReadInTurn implements watchwriter.Reader.
func (w *watcher) ReadInTurn(turn *watchwriter.Turn) { w.turn.Store(turn) }

// sendInTurn sends a batch, and those that have come while the watch has waited for its turn, as
// far as there is room for them: it waits for nothing before the turn is passed.
func (w *watcher) sendInTurn(
	ctx context.Context, turn *watchwriter.Turn, source raftstore.Watcher, batch raftstore.Batch,
) error {
	room := cap(w.result) - len(w.result)
	events, size, more := w.events[:0], 0, true
	var revision uint64
	var failed error
	for more && failed == nil {
		failed = w.eventsOf(ctx, batch, func(event watch.Event) error {
			events = append(events, event)
			return nil
		})
		revision, size = batch.Revision, size+sizeOf(batch)
		if more = size < enough && len(events) < room; more {
			batch, more = source.Poll()
		}
	}
	ready := min(len(events), room)
	for i := range ready {
		w.result <- events[i] // there is room, and no other goroutine sends
	}
	if ready == 0 {
		turn.Done()
	} else {
		turn.Pass()
	}
	for i := ready; i < len(events); i++ {
		if err := w.send(ctx, events[i]); err != nil {
			return err
		}
	}
	clear(events)
	if w.events = events[:0]; cap(events) > most {
		w.events = nil
	}
	if failed == nil {
		w.delivered.Store(revision)
	}
	return failed
}

// sizeOf returns about how many bytes a batch is for the client.
func sizeOf(batch raftstore.Batch) (size int) {
	for i := range batch.Events {
		size += len(batch.Events[i].Item.Value)
	}
	return size
}

// open returns the source of the watch.
func (w *watcher) open() (raftstore.Watcher, error) {
	if value, ok := w.store.index.Wanted(&w.pred); ok && w.recursive && !w.own {
		return w.store.index.Watch(w.key, value, w.after)
	}
	opts := raftstore.WatchOptions{Prefix: w.key, After: w.after}
	if w.progress {
		opts.Progress = w.store.progress
	}
	return w.store.backend.Watch(opts)
}

// beforeEnd is how long before the end of a request its watch gets a last bookmark. A client that
// goes on from there gets few events again. It is Kubernetes'.
const beforeEnd = 2 * time.Second

// remind requests bookmarks, until the function that it returns is called.
func (w *watcher) remind(ctx context.Context, source raftstore.Watcher) (stop func()) {
	var (
		mu      sync.Mutex
		stopped bool
		timers  []*time.Timer
	)
	mu.Lock()
	defer mu.Unlock()
	spread := func() time.Duration { return wait.Jitter(w.store.bookmarks, bookmarkJitter) }
	timers = append(timers, time.AfterFunc(spread(), func() {
		source.RequestProgress()
		mu.Lock()
		defer mu.Unlock()
		if !stopped {
			timers[0].Reset(spread())
		}
	}))
	if end, ok := ctx.Deadline(); ok {
		if before := time.Until(end) - beforeEnd; before > 0 {
			timers = append(timers, time.AfterFunc(before, source.RequestProgress))
		}
	}
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		for _, t := range timers {
			t.Stop()
		}
	}
}

// bookmarkJitter spreads the bookmarks of watches that began together.
const bookmarkJitter = 0.1

// sendInitial sends all that exists, as of now, as added.
func (w *watcher) sendInitial(ctx context.Context) error {
	view, err := w.initialView(ctx)
	if err != nil {
		return err
	}
	var failed error
	read := 0
	visit := func(item raftstore.Item) bool {
		read += len(item.Value)
		failed = w.sendExisting(ctx, &item, read)
		return failed == nil
	}
	if keys, as, ok := w.store.indexed(ctx, w.key, w.recursive, &w.pred, view); ok {
		view = as
		for _, key := range keys {
			if item, ok := view.Get(key); ok && !visit(item) {
				break
			}
		}
	} else if w.recursive {
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
	return w.send(ctx, watch.Event{Type: watch.Bookmark, Object: obj})
}

// initialView returns the snapshot that the watch begins with.
func (w *watcher) initialView(ctx context.Context) (raftstore.View, error) {
	if w.store.objects != nil && w.after == 0 && w.from != "" {
		return w.store.viewAny(ctx, "list")
	}
	view, err := w.store.view(ctx, "list", raftstore.ViewOptions{})
	if err == nil && w.after > view.Revision() {
		err = storage.NewTooLargeResourceVersionError(w.after, view.Revision(), storeerror.RetryAfterSeconds)
	}
	return view, err
}

// sendExisting sends an object that exists as added, if it matches. read is how many bytes of
// objects were read until now.
func (w *watcher) sendExisting(ctx context.Context, item *raftstore.Item, read int) error {
	var (
		obj    runtime.Object
		shared *objectcache.Object
		err    error
	)
	of := storedItem(item)
	if matched, ok := w.stored.matches(of.Value); ok {
		if !matched {
			return nil
		}
		obj := w.store.unread.alone(of, !w.own && w.store.objects.Fits(read))
		return w.send(ctx, watch.Event{Type: watch.Added, Object: obj})
	}
	if !w.own {
		shared = w.store.peek(of)
		if shared == nil && w.store.objects.Fits(read) {
			shared, err = w.store.shared(ctx, of)
		}
	}
	switch {
	case err != nil:
		return untransformed(err)
	case shared != nil:
		if !w.matches(shared.Shared()) {
			return nil
		}
		// Not the shared object: upstream's encoder of tables notes only while it encodes that it
		// has sent the columns.
		obj = shared.Copy()
	default:
		if obj, err = w.store.decodeStored(ctx, of); err != nil {
			return untransformed(err)
		}
		if !w.matches(obj) {
			return nil
		}
	}
	return w.send(ctx, watch.Event{Type: watch.Added, Object: obj})
}

// untransformed unwraps a transformError, which a watch need not distinguish.
func untransformed(err error) error {
	var transform *transformError
	if errors.As(err, &transform) {
		return transform.err
	}
	return err
}

// sendBatch sends a batch as soon as there is room.
func (w *watcher) sendBatch(ctx context.Context, batch raftstore.Batch) error {
	err := w.eventsOf(ctx, batch, func(event watch.Event) error { return w.send(ctx, event) })
	if err == nil {
		w.delivered.Store(batch.Revision)
	}
	return err
}

// eventsOf calls send with the events of a batch for this watch.
func (w *watcher) eventsOf(ctx context.Context, batch raftstore.Batch, send func(watch.Event) error) error {
	if len(batch.Events) == 0 {
		if !w.progress && !w.bookmarks {
			return nil
		}
		metrics.RecordEtcdBookmark(w.store.groupResource)
		obj, err := w.bookmark(batch.Revision)
		if err != nil {
			return err
		}
		return send(watch.Event{Type: watch.Bookmark, Object: obj})
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
		if err := send(watch.Event{Type: kind, Object: obj}); err != nil {
			return err
		}
	}
	return nil
}

// translate turns a change in the store into an event of this watch: an object that begins to match
// is added, one that no longer does is deleted. The object is nil when there is no event.
func (w *watcher) translate(ctx context.Context, event *raftstore.Event) (watch.EventType, runtime.Object, error) {
	item := &event.Item
	// A deletion has the object as it was last, with the revision at which it ceased to be.
	obj, is, err := w.read(ctx, storedItem(item))
	if event.Kind == raftstore.Deleted {
		if err != nil {
			return "", nil, deletedError(err)
		}
		if !is {
			return "", nil, nil
		}
		return watch.Deleted, obj, nil
	}
	if err != nil {
		return "", nil, err
	}
	if event.Kind == raftstore.Created || event.Prev == nil {
		if !is {
			return "", nil, nil
		}
		return watch.Added, obj, nil
	}
	if w.acceptAll {
		return watch.Modified, obj, nil
	}
	was, err := w.matched(ctx, storedItem(event.Prev))
	if err != nil {
		return "", nil, err
	}
	switch {
	case is && was:
		return watch.Modified, obj, nil
	case is:
		return watch.Added, obj, nil
	case was:
		// The object as it was, with the revision at which it ceased to match.
		of := objectcache.Stored{Key: item.Key, Value: event.Prev.Value, Revision: item.ModRevision}
		if _, ok := w.stored.matches(of.Value); ok {
			return watch.Deleted, w.store.unread.gone(of), nil
		}
		gone, err := w.store.decodeStored(ctx, of)
		return watch.Deleted, gone, untransformed(err)
	}
	return "", nil, nil
}

// read returns a stored object as it is sent, and whether it matches. One that does not may be nil.
func (w *watcher) read(ctx context.Context, of objectcache.Stored) (sent runtime.Object, matched bool, err error) {
	switch matched, ok := w.stored.matches(of.Value); {
	case ok && !matched:
		return nil, false, nil
	case ok && w.own:
		return w.store.unread.alone(of, false), true, nil
	case ok:
		return w.store.unread.shared(w.store.objects, of), true, nil
	}
	if w.own {
		obj, err := w.store.decodeStored(ctx, of)
		return obj, err == nil && w.matches(obj), untransformed(err)
	}
	o, err := w.store.shared(ctx, of)
	if err != nil {
		return nil, false, untransformed(err)
	}
	return o, w.matches(o.Shared()), nil
}

// matched reports whether a stored object matches.
func (w *watcher) matched(ctx context.Context, of objectcache.Stored) (bool, error) {
	if matched, ok := w.stored.matches(of.Value); ok {
		return matched, nil
	}
	_, matched, err := w.read(ctx, of)
	return matched, err
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

// deletedError marks the error of an object which cannot be read as one of a deletion, if it is
// corrupt: the consumer then knows that it must list again.
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
		status = storeerror.ExpiredWatch(err)
	case errors.Is(err, raftstore.ErrUnavailable):
		errors.As(storeerror.OfRead(err), &status)
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

package controllertest

import (
	"fmt"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
)

// Tracker is client-go's object tracker with the watches of a real API server. A watch that begins
// at the resourceVersion of a list brings every later event, and a slow watch loses none.
// client-go's own tracker forgets deletions between an informer's first list and its watch. It
// panics when a watcher is a hundred events behind. Both happen on a busy machine.
//
// As in the API, all resources share one revision: the resourceVersions of objects, lists and
// watches of different resources are comparable.
//
// All changes must be made through it.
type Tracker struct {
	inner clienttesting.ObjectTracker

	revision atomic.Int64 // of the newest object, or deletion

	mu      sync.Mutex
	streams map[schema.GroupVersionResource]*stream
}

// stream is all that happened to the objects of one resource since the first look at it.
type stream struct {
	source watch.Interface // inner's events, which are taken out as soon as they are made
	since  int64           // the revision of the first look
	events []event
	grown  chan struct{} // closed and replaced when events are added
}

// event is one at a revision.
type event struct {
	watch.Event
	at int64
}

// Beginning is the revision before the first object. A test lists at it to make an informer late. A
// watch from it brings all events since the first use of the resource.
const Beginning = "1000"

var beginning, _ = strconv.ParseInt(Beginning, 10, 64)

// NewTracker makes an empty tracker of a scheme's objects.
func NewTracker(scheme clienttesting.ObjectScheme, decoder kruntime.Decoder) *Tracker {
	t := &Tracker{inner: clienttesting.NewObjectTracker(scheme, decoder),
		streams: map[schema.GroupVersionResource]*stream{}}
	t.revision.Store(beginning)
	return t
}

// next returns the revision of an object that is about to be written.
func (t *Tracker) next() int64 { return t.revision.Add(1) }

// Serve makes a fake client read, write and watch the tracker's objects. Reactors that are
// prepended later come first.
func (t *Tracker) Serve(client *clienttesting.Fake) {
	client.PrependReactor("*", "*", clienttesting.ObjectReaction(t))
	client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		var opts metav1.ListOptions
		if w, ok := action.(clienttesting.WatchActionImpl); ok {
			opts = w.ListOptions
		}
		w, err := t.Watch(action.GetResource(), action.GetNamespace(), opts)
		return true, w, err
	})
}

// of returns the stream of a resource. t.mu is held.
func (t *Tracker) of(gvr schema.GroupVersionResource) (*stream, error) {
	if s := t.streams[gvr]; s != nil {
		return s, nil
	}
	source, err := t.inner.Watch(gvr, metav1.NamespaceAll)
	if err != nil {
		return nil, err
	}
	s := &stream{source: source, since: t.revision.Load(), grown: make(chan struct{})}
	t.streams[gvr] = s
	return s, nil
}

// change makes one change, and adds its events to the streams.
func (t *Tracker) change(do func() error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := do()
	for _, s := range t.streams {
		t.drain(s)
	}
	return err
}

func (t *Tracker) drain(s *stream) {
	for {
		select {
		case e := <-s.source.ResultChan():
			s.events = append(s.events, t.dated(e))
			close(s.grown)
			s.grown = make(chan struct{})
		default:
			return
		}
	}
}

// dated finds the revision of an event: the object's, if its writer gave it the newest one. A
// deletion has a revision of its own.
func (t *Tracker) dated(e watch.Event) event {
	at := t.revision.Load()
	m, err := meta.Accessor(e.Object)
	if err == nil && e.Type != watch.Deleted && m.GetResourceVersion() == strconv.FormatInt(at, 10) {
		return event{e, at}
	}
	at = t.next()
	if err == nil && e.Type == watch.Deleted {
		e.Object = e.Object.DeepCopyObject()
		if m, err := meta.Accessor(e.Object); err == nil {
			m.SetResourceVersion(strconv.FormatInt(at, 10))
		}
	}
	return event{e, at}
}

// List implements ObjectTracker.
func (t *Tracker) List(
	gvr schema.GroupVersionResource, gvk schema.GroupVersionKind, ns string, opts ...metav1.ListOptions,
) (kruntime.Object, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := t.of(gvr); err != nil {
		return nil, err
	}
	list, err := t.inner.List(gvr, gvk, ns, opts...)
	if err != nil {
		return nil, err
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	m.SetResourceVersion(strconv.FormatInt(t.revision.Load(), 10))
	return list, nil
}

// Watch implements ObjectTracker. It begins after the resourceVersion of a listing; without one,
// now.
func (t *Tracker) Watch(
	gvr schema.GroupVersionResource, ns string, opts ...metav1.ListOptions,
) (watch.Interface, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.of(gvr)
	if err != nil {
		return nil, err
	}
	next := len(s.events)
	if len(opts) > 0 && opts[0].ResourceVersion != "" {
		from, err := strconv.ParseInt(opts[0].ResourceVersion, 10, 64)
		if err != nil || from < s.since && from != beginning || from > t.revision.Load() {
			return nil,
				fmt.Errorf("controllertest: a watch of %s from resourceVersion %q, which no listing had", gvr.Resource,
					opts[0].ResourceVersion)
		}
		next = sort.Search(len(s.events), func(i int) bool { return s.events[i].at > from })
	}
	w := &watcher{tracker: t, stream: s, namespace: ns, next: next, out: make(chan watch.Event),
		stop: make(chan struct{})}
	go w.run()
	return w, nil
}

// watcher is one reader of a stream. Its goroutine ends with Stop.
type watcher struct {
	tracker   *Tracker
	stream    *stream
	namespace string
	next      int
	out       chan watch.Event
	once      sync.Once
	stop      chan struct{}
}

func (w *watcher) ResultChan() <-chan watch.Event { return w.out }

func (w *watcher) Stop() { w.once.Do(func() { close(w.stop) }) }

func (w *watcher) run() {
	defer close(w.out)
	for {
		events, grown := w.news()
		for _, event := range events {
			if !w.concerns(event.Object) {
				continue
			}
			select {
			case w.out <- watch.Event{Type: event.Type, Object: event.Object.DeepCopyObject()}:
			case <-w.stop:
				return
			}
		}
		select {
		case <-grown:
		case <-w.stop:
			return
		}
	}
}

// news returns the unseen events, and a channel that is closed when there are more.
func (w *watcher) news() ([]event, <-chan struct{}) {
	w.tracker.mu.Lock()
	defer w.tracker.mu.Unlock()
	events := w.stream.events[w.next:]
	w.next = len(w.stream.events)
	return events, w.stream.grown
}

func (w *watcher) concerns(obj kruntime.Object) bool {
	m, err := meta.Accessor(obj)
	return err == nil && (w.namespace == metav1.NamespaceAll || m.GetNamespace() == w.namespace)
}

// Add implements ObjectTracker, for single objects.
func (t *Tracker) Add(obj kruntime.Object) error {
	return t.change(func() error { return t.inner.Add(obj) })
}

// Get implements ObjectTracker.
func (t *Tracker) Get(
	gvr schema.GroupVersionResource, ns, name string, opts ...metav1.GetOptions,
) (kruntime.Object, error) {
	return t.inner.Get(gvr, ns, name, opts...)
}

// Create implements ObjectTracker.
func (t *Tracker) Create(
	gvr schema.GroupVersionResource, obj kruntime.Object, ns string, opts ...metav1.CreateOptions,
) error {
	return t.change(func() error { return t.inner.Create(gvr, obj, ns, opts...) })
}

// Update implements ObjectTracker.
func (t *Tracker) Update(
	gvr schema.GroupVersionResource, obj kruntime.Object, ns string, opts ...metav1.UpdateOptions,
) error {
	return t.change(func() error { return t.inner.Update(gvr, obj, ns, opts...) })
}

// Patch implements ObjectTracker.
func (t *Tracker) Patch(
	gvr schema.GroupVersionResource, obj kruntime.Object, ns string, opts ...metav1.PatchOptions,
) error {
	return t.change(func() error { return t.inner.Patch(gvr, obj, ns, opts...) })
}

// Apply implements ObjectTracker.
func (t *Tracker) Apply(
	gvr schema.GroupVersionResource, obj kruntime.Object, ns string, opts ...metav1.PatchOptions,
) error {
	return t.change(func() error { return t.inner.Apply(gvr, obj, ns, opts...) })
}

// Delete implements ObjectTracker.
func (t *Tracker) Delete(gvr schema.GroupVersionResource, ns, name string, opts ...metav1.DeleteOptions) error {
	return t.change(func() error { return t.inner.Delete(gvr, ns, name, opts...) })
}

package gateway

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// singles watches single objects of a kind, each for itself: the account of the gateway may not
// list others. It keeps only a value of each object.
type singles[O runtime.Object, V any] struct {
	kind    O
	source  func(namespace, selector string) cache.ListerWatcher
	read    func(O) V
	changed func()

	mu      sync.Mutex
	ctx     context.Context // of Run; nil before
	watched map[types.NamespacedName]*single[V]
	running sync.WaitGroup
}

type single[V any] struct {
	stop  context.CancelFunc // nil until it runs
	value *V                 // nil until the object is read, and when there is none
}

func newSingles[O runtime.Object, V any](
	kind O, source func(namespace, selector string) cache.ListerWatcher, read func(O) V, changed func(),
) *singles[O, V] {
	return &singles[O, V]{kind: kind, source: source, read: read, changed: changed,
		watched: map[types.NamespacedName]*single[V]{}}
}

// Run watches until ctx ends.
func (s *singles[O, V]) Run(ctx context.Context) error {
	s.mu.Lock()
	s.ctx = ctx
	for name, w := range s.watched {
		s.start(name, w)
	}
	s.mu.Unlock()
	<-ctx.Done()
	s.running.Wait()
	return nil
}

// mostWatched bounds the objects of a kind that are watched: whoever may create routes names them,
// and each takes a stream of the API and some goroutines.
const mostWatched = 2000

// Want replaces the set of objects that are watched. It returns the number of those for which there
// is no room. Those that are watched already stay, so newcomers cannot displace them. Of newcomers
// each namespace has its turn: at a start all are newcomers.
func (s *singles[O, V]) Want(names map[types.NamespacedName]bool) (left int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, w := range s.watched {
		if !names[name] {
			if w.stop != nil {
				w.stop()
			}
			delete(s.watched, name)
		}
	}
	for _, name := range s.newcomers(names) {
		if len(s.watched) >= mostWatched {
			left++
			continue
		}
		w := &single[V]{}
		s.watched[name] = w
		s.start(name, w)
	}
	return left
}

// newcomers returns the objects that are not watched: those first whose namespaces have fewer
// before them. The caller holds mu.
func (s *singles[O, V]) newcomers(names map[types.NamespacedName]bool) (all []types.NamespacedName) {
	before, has := map[types.NamespacedName]int{}, map[string]int{} // by object, and by namespace
	for name := range s.watched {
		has[name.Namespace]++
	}
	for _, name := range slices.SortedFunc(maps.Keys(names), compareNames) {
		if s.watched[name] == nil {
			before[name] = has[name.Namespace]
			has[name.Namespace]++
			all = append(all, name)
		}
	}
	slices.SortStableFunc(all, func(a, b types.NamespacedName) int { return cmp.Compare(before[a], before[b]) })
	return all
}

// start begins to watch one. The caller holds mu.
func (s *singles[O, V]) start(name types.NamespacedName, w *single[V]) {
	if s.ctx == nil || s.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(s.ctx)
	w.stop = stop
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, name.Name).String()
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ObjectType: s.kind, ListerWatcher: s.source(name.Namespace, only),
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { s.set(w, obj) },
			UpdateFunc: func(_, obj any) { s.set(w, obj) },
			DeleteFunc: func(any) { s.set(w, nil) },
		},
	})
	// Ends when Want leaves the object out, or with Run.
	s.running.Go(func() { informer.RunWithContext(ctx) })
}

func (s *singles[O, V]) set(w *single[V], obj any) {
	var value *V
	if of, ok := obj.(O); ok {
		read := s.read(of)
		value = &read
	}
	s.mu.Lock()
	w.value = value
	s.mu.Unlock()
	s.changed()
}

// get returns the value of an object; nil without one.
func (s *singles[O, V]) get(name types.NamespacedName) *V {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.watched[name]; w != nil {
		return w.value
	}
	return nil
}

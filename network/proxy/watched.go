package proxy

import (
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

// watched notes which sources have changed since the last sync, and which slices each service has.
type watched struct {
	mu      sync.Mutex
	changed map[source]struct{}
	slices  map[source]map[string]*discoveryv1.EndpointSlice // of a service, by their names
}

func newWatched() *watched {
	return &watched{changed: map[source]struct{}{}, slices: map[source]map[string]*discoveryv1.EndpointSlice{}}
}

// serviceOf is the service that a slice belongs to.
func serviceOf(slice *discoveryv1.EndpointSlice) source {
	return source{ofService, slice.Namespace, slice.Labels[discoveryv1.LabelServiceName]}
}

// note takes an object from an informer. old is its former value, or nil; now is nil if it is gone.
func (w *watched) note(old, now any) {
	if gone, ok := old.(cache.DeletedFinalStateUnknown); ok {
		old = gone.Obj
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if slice, ok := old.(*discoveryv1.EndpointSlice); ok {
		of := serviceOf(slice)
		if delete(w.slices[of], slice.Name); len(w.slices[of]) == 0 {
			delete(w.slices, of)
		}
		w.changed[of] = struct{}{}
	}
	if slice, ok := now.(*discoveryv1.EndpointSlice); ok {
		of := serviceOf(slice)
		if w.slices[of] == nil {
			w.slices[of] = map[string]*discoveryv1.EndpointSlice{}
		}
		w.slices[of][slice.Name] = slice
		w.changed[of] = struct{}{}
	}
	for _, object := range []any{old, now} {
		switch object := object.(type) {
		case *corev1.Service:
			w.changed[source{ofService, object.Namespace, object.Name}] = struct{}{}
		case *corev1.Pod:
			w.changed[source{ofPod, object.Namespace, object.Name}] = struct{}{}
		}
	}
}

// take returns the sources that have changed since it was called last.
func (w *watched) take() map[source]struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := w.changed
	w.changed = map[source]struct{}{}
	return changed
}

// slicesOf are the slices of a service.
func (w *watched) slicesOf(of source) []*discoveryv1.EndpointSlice {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Values(w.slices[of]))
}

// again has take return the sources once more.
func (w *watched) again(sources map[source]struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.Copy(w.changed, sources)
}

package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
)

// refresh is how often the list of resources is read again. API groups that are added at run time
// announce themselves nowhere else.
const refresh = 30 * time.Second

const (
	// firstLists bounds the concurrent first lists of resources. There are some sixty. All at once,
	// at the start of a term, they would delay the writes that waited for a leader.
	firstLists = 2
	// firstList bounds the wait of the others for a resource's first list. A resource whose webhook
	// is down cannot be listed for as long as that lasts.
	firstList = time.Second
)

// resource is a kind of objects that the API serves.
type resource struct {
	gvr        schema.GroupVersionResource
	namespaced bool
}

// sources follows all objects of the cluster into a graph, as metadata only.
type sources struct {
	client   metadata.Interface
	discover func() ([]*metav1.APIResourceList, error)
	changed  func(gvr schema.GroupVersionResource, old, now metav1.Object)
	turns    chan struct{} // holds one for each resource that is listed for the first time

	mu      sync.RWMutex
	kinds   map[schema.GroupKind]resource
	running map[schema.GroupVersionResource]*source
}

// source follows one resource.
type source struct {
	began  atomic.Pointer[time.Time] // when its turn to be listed came; nil before
	synced <-chan struct{}           // closed when all objects of the first list are in the graph
	stop   func()                    // ends the informer and waits for it
}

func newSources(client metadata.Interface, discover func() ([]*metav1.APIResourceList, error),
	changed func(gvr schema.GroupVersionResource, old, now metav1.Object)) *sources {
	return &sources{
		client: client, discover: discover, changed: changed, turns: make(chan struct{}, firstLists),
		kinds: map[schema.GroupKind]resource{}, running: map[schema.GroupVersionResource]*source{},
	}
}

// run follows the resources of discovery until ctx ends, and then stops all informers. It calls
// known after every object has been seen once.
func (s *sources) run(ctx context.Context, known func(), failed func(error)) {
	var first sync.WaitGroup
	defer first.Wait()
	var once sync.Once
	defer func() {
		s.mu.Lock()
		running := s.running
		s.running = nil
		s.mu.Unlock()
		for _, src := range running {
			src.stop()
		}
	}()
	wait, retry := time.Duration(0), time.Second
	for {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		if err := s.sync(ctx); err != nil && ctx.Err() == nil {
			failed(err)
			wait, retry = retry, min(2*retry, refresh)
			continue
		}
		wait, retry = refresh, time.Second
		once.Do(func() {
			first.Go(func() { // ends with ctx at the latest
				if s.awaitFirst(ctx) {
					known()
				}
			})
		})
	}
}

// sync starts and stops informers so that they are of the resources that discovery lists.
func (s *sources) sync(ctx context.Context) error {
	lists, err := s.discover()
	if partial := (*discovery.ErrGroupDiscoveryFailed)(nil); err != nil && !errors.As(err, &partial) {
		return fmt.Errorf("discovering the cluster's resources: %w", err)
	}
	kinds, follow := sort(lists)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.kinds = kinds
		for gvr, src := range s.running {
			if !slices.Contains(follow, gvr) {
				delete(s.running, gvr)
				src.stop()
			}
		}
	} else { // some groups did not answer: their known resources stay
		for kind, r := range kinds {
			s.kinds[kind] = r
		}
	}
	for _, gvr := range follow {
		if s.running[gvr] != nil {
			continue
		}
		src, err := s.follow(ctx, gvr)
		if err != nil {
			return err
		}
		s.running[gvr] = src
	}
	return nil
}

// sort splits discovery into the kinds that owner references may name and the resources to follow.
func sort(lists []*metav1.APIResourceList) (kinds map[schema.GroupKind]resource, follow []schema.GroupVersionResource) {
	kinds = map[schema.GroupKind]resource{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for i := range list.APIResources {
			r := &list.APIResources[i]
			can := func(verb string) bool { return slices.Contains(r.Verbs, verb) }
			// Events are many, have no owners, and expire.
			if r.Kind == "Event" || !can("get") {
				continue
			}
			gvr := gv.WithResource(r.Name)
			kinds[schema.GroupKind{Group: gv.Group, Kind: r.Kind}] = resource{gvr: gvr, namespaced: r.Namespaced}
			if can("list") && can("watch") && can("delete") {
				follow = append(follow, gvr)
			}
		}
	}
	return kinds, follow
}

func (s *sources) follow(ctx context.Context, gvr schema.GroupVersionResource) (*source, error) {
	informer := metadatainformer.NewFilteredMetadataInformer(s.client, gvr, metav1.NamespaceAll, 0, cache.Indexers{},
		nil).Informer()
	if err := informer.SetTransform(slim); err != nil {
		return nil, fmt.Errorf("following %s: %w", gvr.Resource, err)
	}
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { s.changed(gvr, nil, metaOf(obj)) },
		UpdateFunc: func(old, now any) { s.changed(gvr, metaOf(old), metaOf(now)) },
		DeleteFunc: func(obj any) { s.changed(gvr, metaOf(obj), nil) },
	})
	if err != nil {
		return nil, fmt.Errorf("following %s: %w", gvr.Resource, err)
	}
	synced := handler.HasSyncedChecker().Done()
	src := &source{synced: synced}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { // ends with ctx; stop waits for it
		select {
		case s.turns <- struct{}{}:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		src.began.Store(&now)
		running.Go(func() {
			s.awaitList(ctx, synced)
			<-s.turns
		})
		informer.RunWithContext(ctx)
	})
	src.stop = func() {
		cancel()
		running.Wait()
		_ = cache.ShutDownEventHandler(informer, handler) // fails only for another informer's
	}
	return src, nil
}

// awaitList waits for the first list of a resource, as long as others wait for it.
func (s *sources) awaitList(ctx context.Context, synced <-chan struct{}) {
	patience := time.NewTimer(firstList)
	defer patience.Stop()
	select {
	case <-synced:
	case <-patience.C:
	case <-ctx.Done():
	}
}

// slim drops the fields that the collector never reads.
func slim(obj any) (any, error) {
	if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
		m.ManagedFields, m.Annotations, m.Labels = nil, nil, nil
	}
	return obj, nil
}

func metaOf(obj any) metav1.Object {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	m, ok := obj.(metav1.Object)
	if !ok {
		return nil
	}
	return m
}

// unlisted bounds the wait of deletions for the first list of a resource. A resource that cannot be
// listed for longer, such as with a failed webhook, must not stop all foreground deletions. An
// orphan deletion lists the dependents itself, and goes on only after a success. The time before
// its turn does not count.
const unlisted = 30 * time.Second

// complete reports whether all objects are known that can be.
func (s *sources) complete() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, src := range s.running {
		select {
		case <-src.synced:
		default:
			if began := src.began.Load(); began == nil || time.Since(*began) < unlisted {
				return false
			}
		}
	}
	return len(s.running) > 0
}

// awaitFirst waits until all objects are known of the resources that are followed now. It returns
// false when ctx ends before.
func (s *sources) awaitFirst(ctx context.Context) bool {
	s.mu.RLock()
	running := slices.Collect(maps.Values(s.running))
	s.mu.RUnlock()
	for _, src := range running {
		select {
		case <-src.synced:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// where returns the followed resources of which an object in namespace, empty for one of the
// cluster, may have dependents.
func (s *sources) where(namespace string) []schema.GroupVersionResource {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []schema.GroupVersionResource
	for _, r := range s.kinds {
		if s.running[r.gvr] != nil && (namespace == "" || r.namespaced) {
			out = append(out, r.gvr)
		}
	}
	return out
}

// follows reports whether the graph has, or will have, the objects of a resource.
func (s *sources) follows(gvr schema.GroupVersionResource) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.running[gvr] != nil
}

// named returns the kind that a resource is of.
func (s *sources) named(gvr schema.GroupVersionResource) (string, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for gk, r := range s.kinds {
		if r.gvr == gvr {
			return gk.Kind, true
		}
	}
	return "", false
}

// kind returns the resource that an owner reference's kind is served as.
func (s *sources) kind(gk schema.GroupKind) (resource, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r, ok := s.kinds[gk]
	return r, ok
}

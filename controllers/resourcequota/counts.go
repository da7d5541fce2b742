package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
)

const (
	// refresh is the pause between two discoveries while a quota names a resource that the API
	// lacks.
	refresh = 30 * time.Second
	// firstList is how long a count waits for the first list of a resource.
	firstList = 5 * time.Second
)

// counts follows objects by their metadata, to count them. A resource is followed from its first
// use, until the API does not serve it any more or the term ends.
type counts struct {
	ctx      context.Context // of the term
	client   metadata.Interface
	discover func() ([]*metav1.APIResourceList, error)
	// changed is called for a new object, or else a deleted one.
	changed func(gr schema.GroupResource, namespace string, added bool)

	informers sync.WaitGroup

	mu        sync.Mutex
	running   map[schema.GroupVersionResource]followed
	known     map[schema.GroupResource]schema.GroupVersionResource
	asked     time.Time
	discovery error
}

// followed is an informer and its stop function.
type followed struct {
	cache.SharedIndexInformer
	end context.CancelFunc
}

func newCounts(
	ctx context.Context, client metadata.Interface, discover func() ([]*metav1.APIResourceList, error),
	changed func(schema.GroupResource, string, bool),
) *counts {
	return &counts{ctx: ctx, client: client, discover: discover, changed: changed,
		running: map[schema.GroupVersionResource]followed{},
		known:   map[schema.GroupResource]schema.GroupVersionResource{}}
}

// stop waits for the informers, which end with the term.
func (c *counts) stop() { c.informers.Wait() }

// find returns the version of a resource that the API prefers.
func (c *counts) find(gr schema.GroupResource) (gvr schema.GroupVersionResource, found bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if gvr, found = c.known[gr]; !found && time.Since(c.asked) >= refresh {
		c.discovery = c.read()
		c.asked = time.Now()
		gvr, found = c.known[gr]
	}
	if found {
		return gvr, true, nil
	}
	return gvr, false, c.discovery
}

// read asks for all resources. c.mu is held.
func (c *counts) read() error {
	lists, err := c.discover()
	if partial := (*discovery.ErrGroupDiscoveryFailed)(nil); err != nil && !errors.As(err, &partial) {
		return fmt.Errorf("discovering the cluster's resources: %w", err)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for i := range list.APIResources {
			r := &list.APIResources[i]
			if r.Namespaced && slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch") {
				c.known[gv.WithResource(r.Name).GroupResource()] = gv.WithResource(r.Name)
			}
		}
	}
	return nil
}

// lister returns the lister of a resource when all its objects are known.
func (c *counts) lister(gvr schema.GroupVersionResource) (cache.GenericLister, error) {
	informer, err := c.follow(gvr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(c.ctx, firstList)
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, fmt.Errorf("%s cannot be listed yet", gvr.GroupResource())
	}
	return cache.NewGenericLister(informer.GetIndexer(), gvr.GroupResource()), nil
}

func (c *counts) follow(gvr schema.GroupVersionResource) (cache.SharedIndexInformer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if informer, ok := c.running[gvr]; ok {
		return informer, nil
	}
	byNamespace := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	informer := metadatainformer.NewFilteredMetadataInformer(c.client, gvr, metav1.NamespaceAll, 0, byNamespace,
		nil).Informer()
	if err := informer.SetTransform(slim); err != nil {
		return nil, fmt.Errorf("following %s: %w", gvr.Resource, err)
	}
	tell := func(obj any, added bool) {
		if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = unknown.Obj
		}
		if m, ok := obj.(metav1.Object); ok {
			c.changed(gvr.GroupResource(), m.GetNamespace(), added)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, first bool) {
			if !first { // those of the first list are waited for
				tell(obj, true)
			}
		},
		DeleteFunc: func(obj any) { tell(obj, false) },
	})
	if err == nil {
		err = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
			if apierrors.IsNotFound(err) {
				c.drop(gvr)
				return
			}
			cache.DefaultWatchErrorHandler(ctx, r, err)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("following %s: %w", gvr.Resource, err)
	}
	ctx, end := context.WithCancel(c.ctx)
	c.informers.Go(func() { informer.RunWithContext(ctx) })
	c.running[gvr] = followed{informer, end}
	return informer, nil
}

// drop ends the informer of a resource that the API does not serve any more, as after the deletion
// of its CRD. When it is back, its next use finds it by discovery.
func (c *counts) drop(gvr schema.GroupVersionResource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, ok := c.running[gvr]; ok {
		f.end()
		delete(c.running, gvr)
		delete(c.known, gvr.GroupResource())
	}
}

// slim drops fields that a count does not need.
func slim(obj any) (any, error) {
	if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
		m.ManagedFields, m.Annotations, m.Labels, m.OwnerReferences = nil, nil, nil, nil
	}
	return obj, nil
}

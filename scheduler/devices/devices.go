// Package devices is the scheduler's view of dynamic resources (DRA) in one leadership term. It has
// the claims with their allocations, the classes, and the devices that drivers publish, with the
// taints of rules.
//
// It decides nothing; plugin DynamicResources does, with the allocator of
// k8s.io/dynamic-resource-allocation.
package devices

import (
	"context"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	"k8s.io/client-go/kubernetes"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/dynamic-resource-allocation/resourceslice/tracker"
	"k8s.io/klog/v2"
)

// Devices is shared by the plugins of all profiles.
type Devices struct {
	Claims  *Ledger
	Classes Classes
	// ByResource finds the class for an extended resource. Class receives its events.
	ByResource *extendedresourcecache.ExtendedResourceCache

	informers resourceinformers.Interface
	slices    *tracker.Tracker
}

// Classes finds device classes.
type Classes struct {
	lister resourcelisters.DeviceClassLister
}

// Get returns one.
func (c Classes) Get(name string) (*resourcev1.DeviceClass, error) { return c.lister.Get(name) }

// List returns all.
func (c Classes) List() ([]*resourcev1.DeviceClass, error) { return c.lister.List(labels.Everything()) }

// Request requests the informers, before they start.
func Request(informers resourceinformers.Interface) {
	informers.ResourceClaims().Informer()
	informers.DeviceClasses().Informer()
	informers.ResourceSlices().Informer()
	informers.DeviceTaintRules().Informer()
}

// New returns the devices of one term, about which nothing is known before Start.
func New(informers resourceinformers.Interface) *Devices {
	return &Devices{
		Claims:     NewLedger(),
		Classes:    Classes{informers.DeviceClasses().Lister()},
		ByResource: extendedresourcecache.NewExtendedResourceCache(klog.Background()),
		informers:  informers,
	}
}

// Start follows the drivers' slices, and the rules that taint their devices. changed receives new
// and changed slices. Stop must be called in the end.
func (d *Devices) Start(
	ctx context.Context, client kubernetes.Interface, changed cache.ResourceEventHandler,
) (cache.InformerSynced, error) {
	t, err := tracker.StartTracker(ctx, tracker.Options{
		EnableDeviceTaintRules:   true,
		EnableConsumableCapacity: true,
		SliceInformer:            again{d.informers.ResourceSlices()},
		TaintInformer:            d.informers.DeviceTaintRules(),
		KubeClient:               client,
	})
	if err != nil {
		return nil, fmt.Errorf("follow the devices of the cluster: %w", err)
	}
	d.slices = t
	if _, err := t.AddEventHandler(changed); err != nil {
		return nil, fmt.Errorf("follow the devices of the cluster: %w", err)
	}
	return t.HasSynced, nil
}

// Stop ends the goroutines of Start.
func (d *Devices) Stop() {
	if d.slices != nil {
		d.slices.Stop()
	}
}

// Slices returns the slices of all drivers, with the taints of rules.
func (d *Devices) Slices() ([]*resourcev1.ResourceSlice, error) {
	if d.slices == nil {
		return nil, nil
	}
	return d.slices.ListPatchedResourceSlices()
}

// again is an informer that accepts an index again: each term's tracker adds the same one, and
// informers outlast terms.
type again struct {
	resourceinformers.TypedResourceSliceInformer
}

func (a again) TypedInformer() resourceinformers.ResourceSliceIndexInformer {
	return indexedAgain{a.TypedResourceSliceInformer.TypedInformer()}
}

type indexedAgain struct {
	resourceinformers.ResourceSliceIndexInformer
}

func (i indexedAgain) AddTypedIndexers(indexers resourceinformers.ResourceSliceIndexers) error {
	missing := resourceinformers.ResourceSliceIndexers{}
	have := i.GetIndexer().GetIndexers()
	for name, index := range indexers {
		if have[name] == nil {
			missing[name] = index
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return i.ResourceSliceIndexInformer.AddTypedIndexers(missing)
}

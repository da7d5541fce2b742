package scheduler

import (
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/informers"
	toolscache "k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
)

// storageKind is a kind of volume objects. Plugins read it from its informer. The loop only reports
// its events to the queue.
type storageKind struct {
	informer func() toolscache.SharedIndexInformer
	handler  func(g *gate, t *term) toolscache.ResourceEventHandler
}

func storageKinds(f informers.SharedInformerFactory) []storageKind {
	core, storage := f.Core().V1(), f.Storage().V1()
	return []storageKind{
		{core.PersistentVolumes().Informer, moves[v1.PersistentVolume](fwk.PersistentVolume)},
		{core.PersistentVolumeClaims().Informer, moves[v1.PersistentVolumeClaim](fwk.PersistentVolumeClaim)},
		{storage.StorageClasses().Informer, moves[storagev1.StorageClass](fwk.StorageClass)},
		{storage.CSINodes().Informer, moves[storagev1.CSINode](fwk.CSINode)},
		{storage.CSIDrivers().Informer, moves[storagev1.CSIDriver](fwk.CSIDriver)},
		{storage.CSIStorageCapacities().Informer, moves[storagev1.CSIStorageCapacity](fwk.CSIStorageCapacity)},
		{storage.VolumeAttachments().Informer, moves[storagev1.VolumeAttachment](fwk.VolumeAttachment)},
	}
}

// moves makes a handler that reports each change of a kind to the queue.
func moves[T any](resource fwk.EventResource) func(*gate, *term) toolscache.ResourceEventHandler {
	return func(g *gate, t *term) toolscache.ResourceEventHandler {
		return handler(g, func(old, new *T) {
			switch {
			case old == nil:
				t.queue.Move(fwk.ClusterEvent{Resource: resource, ActionType: fwk.Add}, nil, new)
			case new == nil:
				t.queue.Move(fwk.ClusterEvent{Resource: resource, ActionType: fwk.Delete}, old, nil)
			default:
				t.queue.Move(fwk.ClusterEvent{Resource: resource, ActionType: fwk.Update}, old, new)
			}
		})
	}
}

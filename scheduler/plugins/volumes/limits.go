package volumes

import (
	"context"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	storage "k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins/helper"
	"github.com/barque/barque/scheduler/plugins/names"
)

// NodeVolumeLimits keeps the volumes of each CSI driver on a node within the limit in the node's
// CSINode. A volume that several pods use counts once. A driver can keep its pods off nodes without
// it (CSIDriver.spec.preventPodSchedulingIfMissing).
type NodeVolumeLimits struct {
	claims      corelisters.PersistentVolumeClaimLister
	volumes     corelisters.PersistentVolumeLister
	classes     storagelisters.StorageClassLister
	csiNodes    storagelisters.CSINodeLister
	drivers     storagelisters.CSIDriverLister
	attachments cache.SharedIndexInformer
}

// attachmentsByNode is the index of VolumeAttachments by their node.
const attachmentsByNode = "scheduler/node"

// NewLimits makes the plugin NodeVolumeLimits.
func NewLimits(h *framework.Handle) (fwk.Plugin, error) {
	core, storages := h.Informers.Core().V1(), h.Informers.Storage().V1()
	p := &NodeVolumeLimits{
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
		classes: storages.StorageClasses().Lister(), csiNodes: storages.CSINodes().Lister(),
		drivers:     storages.CSIDrivers().Lister(),
		attachments: storages.VolumeAttachments().Informer(),
	}
	if _, exists := p.attachments.GetIndexer().GetIndexers()[attachmentsByNode]; exists {
		return p, nil
	}
	return p, p.attachments.AddIndexers(cache.Indexers{attachmentsByNode: func(obj any) ([]string, error) {
		if a, ok := obj.(*storagev1.VolumeAttachment); ok {
			return []string{a.Spec.NodeName}, nil
		}
		return nil, nil
	}})
}

// Name of the plugin.
func (*NodeVolumeLimits) Name() string { return names.NodeVolumeLimits }

// PreFilter skips pods without claims.
func (*NodeVolumeLimits) PreFilter(
	_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	if !usesClaims(pod) {
		return nil, skipped
	}
	return nil, nil
}

// PreFilterExtensions is nil: Filter looks at the node it is given.
func (*NodeVolumeLimits) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// csiVolume is one volume of a driver. Of a volume that is not made yet the claim is the handle.
type csiVolume struct{ driver, handle string }

// Filter rejects a node on which the pod's volumes would be too many, or a driver of theirs is
// missing.
func (p *NodeVolumeLimits) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	csiNode, err := p.csiNodes.Get(node.Node().Name)
	if apierrors.IsNotFound(err) {
		csiNode = &storagev1.CSINode{} // no driver is there
	} else if err != nil {
		return fwk.AsStatus(err)
	}
	wanted := map[csiVolume]bool{}
	if err := p.collect(pod, wanted); err != nil {
		return asStatus(err)
	}
	limits, there := map[string]int{}, map[string]bool{}
	for _, d := range csiNode.Spec.Drivers {
		there[d.Name] = true
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			limits[d.Name] = int(*d.Allocatable.Count)
		}
	}
	for v := range wanted {
		if there[v.driver] {
			continue
		}
		prevents, err := p.prevents(v.driver)
		if err != nil {
			return fwk.AsStatus(err)
		}
		if prevents {
			return fwk.NewStatus(fwk.Unschedulable, v.driver+" CSI driver is not installed on the node")
		}
	}
	if len(limits) == 0 {
		return nil
	}
	return p.withinLimits(wanted, limits, node)
}

// prevents reports whether a driver keeps pods off nodes that lack it. An unknown driver does not.
func (p *NodeVolumeLimits) prevents(name string) (bool, error) {
	driver, err := p.drivers.Get(name)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && ptr.Deref(driver.Spec.PreventPodSchedulingIfMissing, false), err
}

// withinLimits rejects a node on which the wanted volumes would be too many.
func (p *NodeVolumeLimits) withinLimits(
	wanted map[csiVolume]bool, limits map[string]int, node fwk.NodeInfo,
) *fwk.Status {
	there := p.attached(node.Node().Name)
	for _, o := range node.GetPods() {
		// A running pod with a missing volume keeps no other pod from running.
		_ = p.collect(o.GetPod(), there)
	}
	counts := map[string]int{}
	for v := range there {
		counts[v.driver]++
	}
	for v := range wanted {
		if there[v] {
			continue
		}
		counts[v.driver]++
		if limit, ok := limits[v.driver]; ok && counts[v.driver] > limit {
			return fwk.NewStatus(fwk.Unschedulable, "node(s) exceed max volume count")
		}
	}
	return nil
}

// collect adds the CSI volumes of a pod. It returns the first error, after all others are added.
func (p *NodeVolumeLimits) collect(pod *v1.Pod, into map[csiVolume]bool) (failed error) {
	forEachClaim(pod, func(name string, _ bool) bool {
		claim, err := p.claims.PersistentVolumeClaims(pod.Namespace).Get(name)
		if err != nil {
			if failed == nil {
				failed = err
			}
			return true
		}
		if v, ok := p.volumeOf(claim); ok {
			into[v] = true
		}
		return true
	})
	return failed
}

// volumeOf returns the CSI volume of a claim, if it has one or shall get one.
func (p *NodeVolumeLimits) volumeOf(claim *v1.PersistentVolumeClaim) (csiVolume, bool) {
	if name := claim.Spec.VolumeName; name != "" {
		if volume, err := p.volumes.Get(name); err == nil {
			return csiVolumeOf(volume)
		}
	}
	class, err := p.classes.Get(storage.GetPersistentVolumeClaimClass(claim))
	if err != nil {
		return csiVolume{}, false
	}
	return csiVolume{class.Provisioner, "claim " + claim.Namespace + "/" + claim.Name}, true
}

func csiVolumeOf(volume *v1.PersistentVolume) (csiVolume, bool) {
	if volume.Spec.CSI == nil {
		return csiVolume{}, false
	}
	return csiVolume{volume.Spec.CSI.Driver, volume.Spec.CSI.VolumeHandle}, true
}

// attached returns the volumes that are attached to a node, or are about to be.
func (p *NodeVolumeLimits) attached(node string) map[csiVolume]bool {
	out := map[csiVolume]bool{}
	list, _ := p.attachments.GetIndexer().ByIndex(attachmentsByNode, node) // the index exists
	for _, obj := range list {
		a, ok := obj.(*storagev1.VolumeAttachment)
		if !ok || a.Spec.Source.PersistentVolumeName == nil {
			continue
		}
		if volume, err := p.volumes.Get(*a.Spec.Source.PersistentVolumeName); err == nil {
			if v, ok := csiVolumeOf(volume); ok {
				out[v] = true
			}
		}
	}
	return out
}

// EventsToRegister returns the events that make room or raise the limit.
func (*NodeVolumeLimits) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		helper.Hinted(fwk.CSINode, fwk.Add|fwk.Update,
			func(_ klog.Logger, _ *v1.Pod, old, now any) (fwk.QueueingHint, error) {
				was, updated := old.(*storagev1.CSINode)
				is, ok := now.(*storagev1.CSINode)
				return helper.HintIf(!updated || !ok || raises(was, is))
			}),
		helper.Hinted(fwk.AssignedPod, fwk.Delete,
			func(_ klog.Logger, _ *v1.Pod, old, _ any) (fwk.QueueingHint, error) {
				gone, ok := old.(*v1.Pod)
				return helper.HintIf(!ok || usesClaims(gone))
			}),
		helper.Hinted(fwk.PersistentVolumeClaim, fwk.Add|fwk.Update, hintOnClaim),
		helper.Event(fwk.VolumeAttachment, fwk.Delete),
		helper.Hinted(fwk.CSIDriver, fwk.Update|fwk.Delete,
			func(_ klog.Logger, _ *v1.Pod, old, now any) (fwk.QueueingHint, error) {
				was, ok := old.(*storagev1.CSIDriver)
				is, ok2 := now.(*storagev1.CSIDriver)
				return helper.HintIf(
					!ok ||
						ptr.Deref(was.Spec.PreventPodSchedulingIfMissing, false) &&
							(!ok2 || !ptr.Deref(is.Spec.PreventPodSchedulingIfMissing, false)))
			}),
	}, nil
}

// raises reports whether a node has another driver, or a driver with a higher limit.
func raises(was, is *storagev1.CSINode) bool {
	before := map[string]*int32{} // nil is no limit
	limit := func(d storagev1.CSINodeDriver) *int32 {
		if d.Allocatable == nil {
			return nil
		}
		return d.Allocatable.Count
	}
	for _, d := range was.Spec.Drivers {
		before[d.Name] = limit(d)
	}
	for _, d := range is.Spec.Drivers {
		old, there := before[d.Name]
		now := limit(d)
		if !there || old != nil && (now == nil || *now > *old) {
			return true
		}
	}
	return len(is.Spec.Drivers) < len(was.Spec.Drivers)
}

package volumes

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins/helper"
	"github.com/barque/barque/scheduler/plugins/names"
)

const volumeRestrictionsKey fwk.StateKey = names.VolumeRestrictions

// VolumeRestrictions keeps two pods from one volume that takes one only: a claim that is
// ReadWriteOncePod, anywhere, and a disk that is named in the pod, on one node.
type VolumeRestrictions struct {
	claims corelisters.PersistentVolumeClaimLister
	nodes  fwk.NodeInfoLister
}

// NewRestrictions makes the plugin VolumeRestrictions.
func NewRestrictions(h *framework.Handle) (fwk.Plugin, error) {
	return &VolumeRestrictions{h.Informers.Core().V1().PersistentVolumeClaims().Lister(), h.NodeInfos}, nil
}

// Name of the plugin.
func (*VolumeRestrictions) Name() string { return names.VolumeRestrictions }

// oncePod counts the uses of the pod's ReadWriteOncePod claims by other pods.
type oncePod struct {
	claims sets.Set[string] // names, in the pod's namespace
	uses   int
}

// Clone returns one that can be changed on its own.
func (o *oncePod) Clone() fwk.StateData { return &oncePod{o.claims, o.uses} }

// count adds the uses of a pod, sign times.
func (o *oncePod) count(namespace string, other *v1.Pod, sign int) {
	if other.Namespace != namespace {
		return
	}
	for i := range other.Spec.Volumes {
		if c := other.Spec.Volumes[i].PersistentVolumeClaim; c != nil && o.claims.Has(c.ClaimName) {
			o.uses += sign
		}
	}
}

// PreFilter counts the other users of the pod's claims.
func (p *VolumeRestrictions) PreFilter(
	_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	var disks bool
	var alone sets.Set[string]
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		disks = disks || isDisk(v)
		if v.PersistentVolumeClaim == nil {
			continue
		}
		claim, err := p.claims.PersistentVolumeClaims(pod.Namespace).Get(v.PersistentVolumeClaim.ClaimName)
		if err != nil {
			return nil, asStatus(err)
		}
		if slices.Contains(claim.Spec.AccessModes, v1.ReadWriteOncePod) {
			if alone == nil {
				alone = sets.New[string]()
			}
			alone.Insert(claim.Name)
		}
	}
	if !disks && len(alone) == 0 {
		return nil, skipped
	}
	s := &oncePod{claims: alone}
	if len(alone) > 0 {
		nodes, err := p.nodes.List()
		if err != nil {
			return nil, fwk.AsStatus(err)
		}
		for _, n := range nodes {
			for name := range alone {
				s.uses += n.GetPVCRefCounts()[pod.Namespace+"/"+name]
			}
		}
	}
	if !disks && s.uses == 0 {
		return nil, skipped
	}
	state.Write(volumeRestrictionsKey, s)
	return nil, nil
}

// PreFilterExtensions is the plugin itself.
func (p *VolumeRestrictions) PreFilterExtensions() fwk.PreFilterExtensions { return p }

// AddPod counts a pod in.
func (*VolumeRestrictions) AddPod(
	_ context.Context, state fwk.CycleState, pod *v1.Pod, add fwk.PodInfo, _ fwk.NodeInfo,
) *fwk.Status {
	if s, ok := framework.ReadState[*oncePod](state, volumeRestrictionsKey); ok {
		s.count(pod.Namespace, add.GetPod(), 1)
	}
	return nil
}

// RemovePod counts a pod out.
func (*VolumeRestrictions) RemovePod(
	_ context.Context, state fwk.CycleState, pod *v1.Pod, remove fwk.PodInfo, _ fwk.NodeInfo,
) *fwk.Status {
	if s, ok := framework.ReadState[*oncePod](state, volumeRestrictionsKey); ok {
		s.count(pod.Namespace, remove.GetPod(), -1)
	}
	return nil
}

// Filter rejects a node with a pod that has the disk, and every node while a pod has the claim.
func (*VolumeRestrictions) Filter(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if isDisk(v) &&
			slices.ContainsFunc(node.GetPods(), func(o fwk.PodInfo) bool { return diskTaken(v, o.GetPod()) }) {
			return fwk.NewStatus(fwk.Unschedulable, "node(s) had no available disk")
		}
	}
	if s, ok := framework.ReadState[*oncePod](state, volumeRestrictionsKey); ok && s.uses > 0 {
		return fwk.NewStatus(fwk.Unschedulable,
			"node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode")
	}
	return nil
}

// isDisk reports whether a volume is a disk that two pods may not share.
func isDisk(v *v1.Volume) bool {
	return v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.RBD != nil || v.ISCSI != nil
}

// diskTaken reports whether a pod uses the disk of a volume. Pods may share a disk read-only,
// except for EBS.
func diskTaken(v *v1.Volume, other *v1.Pod) bool {
	return slices.ContainsFunc(other.Spec.Volumes, func(o v1.Volume) bool {
		switch {
		case v.GCEPersistentDisk != nil && o.GCEPersistentDisk != nil:
			a, b := v.GCEPersistentDisk, o.GCEPersistentDisk
			return a.PDName == b.PDName && (!a.ReadOnly || !b.ReadOnly)
		case v.AWSElasticBlockStore != nil && o.AWSElasticBlockStore != nil:
			return v.AWSElasticBlockStore.VolumeID == o.AWSElasticBlockStore.VolumeID
		case v.ISCSI != nil && o.ISCSI != nil:
			return v.ISCSI.IQN == o.ISCSI.IQN && (!v.ISCSI.ReadOnly || !o.ISCSI.ReadOnly)
		case v.RBD != nil && o.RBD != nil:
			a, b := v.RBD, o.RBD
			return a.RBDPool == b.RBDPool && a.RBDImage == b.RBDImage && (!a.ReadOnly || !b.ReadOnly) &&
				slices.ContainsFunc(a.CephMonitors, func(m string) bool { return slices.Contains(b.CephMonitors, m) })
		}
		return false
	})
}

// EventsToRegister names pods that end, new nodes and claims that come.
func (*VolumeRestrictions) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		helper.Hinted(fwk.AssignedPod, fwk.Delete,
			func(_ klog.Logger, pod *v1.Pod, old, _ any) (fwk.QueueingHint, error) {
				gone, ok := old.(*v1.Pod)
				return helper.HintIf(!ok || sharesVolume(pod, gone))
			}),
		helper.Event(fwk.Node, fwk.Add),
		helper.Hinted(fwk.PersistentVolumeClaim, fwk.Add|fwk.Update, hintOnClaim),
	}, nil
}

// sharesVolume reports whether two pods use the same claim or disk.
func sharesVolume(pod, other *v1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool {
		if isDisk(&v) {
			return diskTaken(&v, other)
		}
		return v.PersistentVolumeClaim != nil && pod.Namespace == other.Namespace &&
			slices.ContainsFunc(other.Spec.Volumes, func(o v1.Volume) bool {
				return o.PersistentVolumeClaim != nil &&
					o.PersistentVolumeClaim.ClaimName == v.PersistentVolumeClaim.ClaimName
			})
	})
}

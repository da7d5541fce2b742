package volumes

import (
	"context"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	storage "k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins/helper"
	"github.com/barque/barque/scheduler/plugins/names"
)

const volumeZoneKey fwk.StateKey = names.VolumeZone

// VolumeZone keeps a pod in the zones and regions that the labels of its volumes name.
type VolumeZone struct {
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
}

// NewZone makes the plugin VolumeZone.
func NewZone(h *framework.Handle) (fwk.Plugin, error) {
	core := h.Informers.Core().V1()
	return &VolumeZone{core.PersistentVolumeClaims().Lister(), core.PersistentVolumes().Lister(),
		h.Informers.Storage().V1().StorageClasses().Lister()}, nil
}

// Name of the plugin.
func (*VolumeZone) Name() string { return names.VolumeZone }

// zoneLabels are the labels of zones and regions, with the names that they have now.
var zoneLabels = []struct{ key, now string }{
	{v1.LabelFailureDomainBetaZone, v1.LabelTopologyZone},
	{v1.LabelFailureDomainBetaRegion, v1.LabelTopologyRegion},
	{v1.LabelTopologyZone, v1.LabelTopologyZone},
	{v1.LabelTopologyRegion, v1.LabelTopologyRegion},
}

// zoneTerm is a label that a node must have, with one of the values.
type zoneTerm struct {
	key, now string
	values   []string
}

type zoneTerms []zoneTerm

// Clone returns the same: it does not change.
func (z zoneTerms) Clone() fwk.StateData { return z }

// PreFilter reads the labels of the pod's volumes.
func (p *VolumeZone) PreFilter(
	_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	var terms zoneTerms
	for i := range pod.Spec.Volumes {
		if c := pod.Spec.Volumes[i].PersistentVolumeClaim; c != nil {
			more, status := p.termsOf(pod.Namespace, c.ClaimName)
			if !status.IsSuccess() {
				return nil, status
			}
			terms = append(terms, more...)
		}
	}
	if len(terms) == 0 {
		return nil, skipped
	}
	state.Write(volumeZoneKey, terms)
	return nil, nil
}

// termsOf returns the node terms of a claim's volume.
func (p *VolumeZone) termsOf(namespace, name string) (zoneTerms, *fwk.Status) {
	claim, err := p.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return nil, asStatus(err)
	}
	if claim.Spec.VolumeName == "" {
		class := storage.GetPersistentVolumeClaimClass(claim)
		if class == "" {
			return nil,
				fwk.NewStatus(fwk.UnschedulableAndUnresolvable,
					"PersistentVolumeClaim had no pv name and storageClass name")
		}
		c, err := p.classes.Get(class)
		if err != nil {
			return nil, asStatus(err)
		}
		if !waitsForConsumer(c) {
			return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "PersistentVolume had no name")
		}
		return nil, nil // its volume is chosen for the node
	}
	volume, err := p.volumes.Get(claim.Spec.VolumeName)
	if err != nil {
		return nil, asStatus(err)
	}
	return zonesOf(volume), nil
}

// zonesOf returns the node terms of a volume's labels. "__" separates several zones in a label.
func zonesOf(volume *v1.PersistentVolume) (terms zoneTerms) {
	for _, l := range zoneLabels {
		if value, ok := volume.Labels[l.key]; ok {
			if values := strings.Split(value, "__"); !slices.Contains(values, "") {
				terms = append(terms, zoneTerm{l.key, l.now, values})
			}
		}
	}
	return terms
}

// PreFilterExtensions is nil: other pods do not matter.
func (*VolumeZone) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter rejects a node in another zone. In a cluster without zones there is none.
func (*VolumeZone) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	terms, ok := framework.ReadState[zoneTerms](state, volumeZoneKey)
	if !ok {
		return nil
	}
	has := node.Node().Labels
	zoned := false
	for _, l := range zoneLabels {
		_, ok := has[l.key]
		zoned = zoned || ok
	}
	if !zoned {
		return nil
	}
	for _, t := range terms {
		value, ok := has[t.key]
		if !ok {
			value, ok = has[t.now]
		}
		if !ok || !slices.Contains(t.values, value) {
			return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) had no available volume zone")
		}
	}
	return nil
}

// EventsToRegister names nodes, and volumes and claims with other labels.
func (*VolumeZone) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		helper.Hinted(fwk.StorageClass, fwk.Add, func(_ klog.Logger, _ *v1.Pod, _, now any) (fwk.QueueingHint, error) {
			class, ok := now.(*storagev1.StorageClass)
			return helper.HintIf(!ok || waitsForConsumer(class))
		}),
		helper.Event(fwk.Node, fwk.Add|fwk.UpdateNodeLabel),
		helper.Hinted(fwk.PersistentVolumeClaim, fwk.Add|fwk.Update, hintOnClaim),
		helper.Hinted(fwk.PersistentVolume, fwk.Add|fwk.Update,
			func(_ klog.Logger, _ *v1.Pod, old, now any) (fwk.QueueingHint, error) {
				was, updated := old.(*v1.PersistentVolume)
				is, ok := now.(*v1.PersistentVolume)
				return helper.HintIf(
					!updated || !ok || !slices.EqualFunc(zonesOf(was), zonesOf(is), func(a, b zoneTerm) bool {
						return a.key == b.key && slices.Equal(a.values, b.values)
					}))
			}),
	}, nil
}

package plugins

import (
	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins/dynamicresources"
	"github.com/barque/barque/scheduler/plugins/names"
	"github.com/barque/barque/scheduler/plugins/volumes"
)

// Registry returns all plugins.
func Registry() framework.Registry {
	return framework.Registry{
		names.PrioritySort:                    plain(PrioritySort{}),
		names.SchedulingGates:                 plain(SchedulingGates{}),
		names.NodeUnschedulable:               plain(NodeUnschedulable{}),
		names.NodeName:                        plain(NodeName{}),
		names.TaintToleration:                 plain(TaintToleration{}),
		names.NodeAffinity:                    newNodeAffinity,
		names.NodePorts:                       plain(NodePorts{}),
		names.NodeResourcesFit:                newFit,
		names.VolumeRestrictions:              volumes.NewRestrictions,
		names.NodeVolumeLimits:                volumes.NewLimits,
		names.VolumeBinding:                   volumes.NewBinding,
		names.VolumeZone:                      volumes.NewZone,
		names.NodeResourcesBalancedAllocation: newBalanced,
		names.ImageLocality:                   plain(ImageLocality{}),
		names.PodTopologySpread:               newTopologySpread,
		names.InterPodAffinity:                newInterPodAffinity,
		names.DynamicResources:                dynamicresources.New,
		names.DefaultPreemption:               newPreemption,
		names.DefaultBinder:                   newBinder,
	}
}

// Default returns the profile of the scheduler that pods get when they name none. The cheap
// filters come first.
func Default() framework.Spec {
	return framework.Spec{
		SchedulerName: v1.DefaultSchedulerName,
		Plugins: []framework.Enabled{
			{Name: names.PrioritySort},
			{Name: names.SchedulingGates},
			{Name: names.NodeName},
			{Name: names.NodeUnschedulable},
			{Name: names.TaintToleration, Weight: 3},
			{Name: names.NodeAffinity, Weight: 2},
			{Name: names.NodePorts},
			{Name: names.NodeResourcesFit, Weight: 1},
			{Name: names.VolumeRestrictions},
			{Name: names.NodeVolumeLimits},
			{Name: names.VolumeBinding},
			{Name: names.VolumeZone},
			{Name: names.PodTopologySpread, Weight: 2},
			{Name: names.InterPodAffinity, Weight: 2},
			{Name: names.NodeResourcesBalancedAllocation, Weight: 1},
			{Name: names.ImageLocality, Weight: 1},
			{Name: names.DynamicResources, Weight: 2},
			{Name: names.DefaultPreemption},
			{Name: names.DefaultBinder},
		},
	}
}

// plain is the factory of a plugin without state.
func plain(p fwk.Plugin) framework.Factory {
	return func(*framework.Handle) (fwk.Plugin, error) { return p, nil }
}

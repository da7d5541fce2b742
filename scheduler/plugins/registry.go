package plugins

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
)

// Names of the plugins, as KubeSchedulerConfiguration spells them.
const (
	PrioritySortName       = "PrioritySort"
	SchedulingGatesName    = "SchedulingGates"
	NodeUnschedulableName  = "NodeUnschedulable"
	NodeNameName           = "NodeName"
	TaintTolerationName    = "TaintToleration"
	NodeAffinityName       = "NodeAffinity"
	NodePortsName          = "NodePorts"
	FitName                = "NodeResourcesFit"
	VolumeRestrictionsName = "VolumeRestrictions"
	NodeVolumeLimitsName   = "NodeVolumeLimits"
	VolumeBindingName      = "VolumeBinding"
	VolumeZoneName         = "VolumeZone"
	TopologySpreadName     = "PodTopologySpread"
	InterPodAffinityName   = "InterPodAffinity"
	BalancedName           = "NodeResourcesBalancedAllocation"
	ImageLocalityName      = "ImageLocality"
	DevicesName            = "DynamicResources"
	PreemptionName         = "DefaultPreemption"
	BinderName             = "DefaultBinder"
)

// Registry returns all plugins of this package.
func Registry() framework.Registry {
	return framework.Registry{
		PrioritySortName:       plain(PrioritySort{}),
		SchedulingGatesName:    plain(SchedulingGates{}),
		NodeUnschedulableName:  plain(NodeUnschedulable{}),
		NodeNameName:           plain(NodeName{}),
		TaintTolerationName:    plain(TaintToleration{}),
		NodeAffinityName:       newNodeAffinity,
		NodePortsName:          plain(NodePorts{}),
		FitName:                newFit,
		VolumeRestrictionsName: newVolumeRestrictions,
		NodeVolumeLimitsName:   newNodeVolumeLimits,
		VolumeBindingName:      newVolumeBinding,
		VolumeZoneName:         newVolumeZone,
		BalancedName:           newBalanced,
		ImageLocalityName:      plain(ImageLocality{}),
		TopologySpreadName:     newTopologySpread,
		InterPodAffinityName:   newInterPodAffinity,
		DevicesName:            newDynamicResources,
		PreemptionName:         newPreemption,
		BinderName:             newBinder,
	}
}

// Default returns the profile of the scheduler that pods get when they name none. The cheap
// filters come first.
func Default() framework.Spec {
	return framework.Spec{
		SchedulerName: v1.DefaultSchedulerName,
		Plugins: []framework.Enabled{
			{Name: PrioritySortName},
			{Name: SchedulingGatesName},
			{Name: NodeNameName},
			{Name: NodeUnschedulableName},
			{Name: TaintTolerationName, Weight: 3},
			{Name: NodeAffinityName, Weight: 2},
			{Name: NodePortsName},
			{Name: FitName, Weight: 1},
			{Name: VolumeRestrictionsName},
			{Name: NodeVolumeLimitsName},
			{Name: VolumeBindingName},
			{Name: VolumeZoneName},
			{Name: TopologySpreadName, Weight: 2},
			{Name: InterPodAffinityName, Weight: 2},
			{Name: BalancedName, Weight: 1},
			{Name: ImageLocalityName, Weight: 1},
			{Name: DevicesName, Weight: 2},
			{Name: PreemptionName},
			{Name: BinderName},
		},
	}
}

// plain is the factory of a plugin without state.
func plain(p fwk.Plugin) framework.Factory {
	return func(*framework.Handle) (fwk.Plugin, error) { return p, nil }
}

// normalize stretches the scores so that the greatest becomes MaxScore; reverse makes the lowest
// raw score the best.
func normalize(scores fwk.NodeScoreList, reverse bool) *fwk.Status {
	var most int64
	for _, s := range scores {
		most = max(most, s.Score)
	}
	for i := range scores {
		switch s := &scores[i].Score; {
		case most > 0 && reverse:
			*s = fwk.MaxScore - *s*fwk.MaxScore/most
		case most > 0:
			*s = *s * fwk.MaxScore / most
		case reverse:
			*s = fwk.MaxScore
		}
	}
	return nil
}

// ascending normalises scores of which more is better; it is the ScoreExtensions of a plugin.
type ascending struct{}

func (ascending) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *v1.Pod, s fwk.NodeScoreList) *fwk.Status {
	return normalize(s, false)
}

// descending normalises scores of which less is better.
type descending struct{}

func (descending) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *v1.Pod, s fwk.NodeScoreList) *fwk.Status {
	return normalize(s, true)
}

// event is short for an event to register without a hint.
func event(resource fwk.EventResource, action fwk.ActionType) fwk.ClusterEventWithHint {
	return fwk.ClusterEventWithHint{Event: fwk.ClusterEvent{Resource: resource, ActionType: action}}
}

// hinted is short for an event that helps only when ok says so.
func hinted(resource fwk.EventResource, action fwk.ActionType, hint fwk.QueueingHintFn) fwk.ClusterEventWithHint {
	e := event(resource, action)
	e.QueueingHintFn = hint
	return e
}

func hintIf(ok bool) (fwk.QueueingHint, error) {
	if ok {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

package plugins

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/plugins/helper"
	"github.com/barque/barque/scheduler/plugins/names"
)

// PrioritySort serves pods of higher priority first, and among equals the one that waits longest.
type PrioritySort struct{}

// Name of the plugin.
func (PrioritySort) Name() string { return names.PrioritySort }

// Less orders the queue.
func (PrioritySort) Less(a, b fwk.QueuedEntityInfo) bool {
	if pa, pb := a.GetPriority(), b.GetPriority(); pa != pb {
		return pa > pb
	}
	return a.GetTimestamp().Before(b.GetTimestamp())
}

// SchedulingGates keeps a pod out of scheduling as long as spec.schedulingGates is not empty.
type SchedulingGates struct{}

// Name of the plugin.
func (SchedulingGates) Name() string { return names.SchedulingGates }

// PreEnqueue rejects a gated pod.
func (SchedulingGates) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	if len(pod.Spec.SchedulingGates) == 0 {
		return nil
	}
	names := make([]string, 0, len(pod.Spec.SchedulingGates))
	for _, g := range pod.Spec.SchedulingGates {
		names = append(names, g.Name)
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable,
		fmt.Sprintf("waiting for scheduling gates: %s", strings.Join(names, ", ")))
}

// EventsToRegister names the removal of the last gate.
func (SchedulingGates) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{helper.Event(fwk.TargetPod, fwk.UpdatePodSchedulingGatesEliminated)}, nil
}

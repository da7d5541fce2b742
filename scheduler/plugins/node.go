package plugins

import (
	"context"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/plugins/helper"
	"github.com/barque/barque/scheduler/plugins/names"
)

// NodeUnschedulable keeps pods off cordoned nodes, unless they tolerate that.
type NodeUnschedulable struct{}

// Name of the plugin.
func (NodeUnschedulable) Name() string { return names.NodeUnschedulable }

// Filter rejects a cordoned node.
func (NodeUnschedulable) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	if !node.Node().Spec.Unschedulable || toleratesCordon(pod) {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) were unschedulable")
}

// EventsToRegister names uncordoned nodes and new tolerations.
func (NodeUnschedulable) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		helper.Hinted(fwk.Node, fwk.Add|fwk.UpdateNodeTaint,
			func(_ klog.Logger, pod *v1.Pod, _, n any) (fwk.QueueingHint, error) {
				node, ok := n.(*v1.Node)
				return helper.HintIf(!ok || !node.Spec.Unschedulable || toleratesCordon(pod))
			}),
		helper.Event(fwk.TargetPod, fwk.UpdatePodToleration),
	}, nil
}

func toleratesCordon(pod *v1.Pod) bool {
	return corev1helpers.TolerationsTolerateTaint(logr.Discard(), pod.Spec.Tolerations,
		&v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}, true)
}

// NodeName honours spec.nodeName of a pod that already has one.
type NodeName struct{}

// Name of the plugin.
func (NodeName) Name() string { return names.NodeName }

// Filter rejects every node but the named one.
func (NodeName) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	if pod.Spec.NodeName == "" || pod.Spec.NodeName == node.Node().Name {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't match the requested node name")
}

// EventsToRegister names new nodes.
func (NodeName) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{helper.Event(fwk.Node, fwk.Add)}, nil
}

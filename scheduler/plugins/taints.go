package plugins

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/plugins/helper"
	"github.com/barque/barque/scheduler/plugins/names"
)

// TaintToleration keeps pods off nodes with taints that they do not tolerate. It prefers nodes with
// few untolerated PreferNoSchedule taints.
type TaintToleration struct{}

// Name of the plugin.
func (TaintToleration) Name() string { return names.TaintToleration }

// Filter rejects a node with an untolerated NoSchedule or NoExecute taint.
func (TaintToleration) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	taint, found := untolerated(pod, node.Node())
	if !found {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable,
		fmt.Sprintf("node(s) had untolerated taint {%s: %s}", taint.Key, taint.Value))
}

// Score counts the PreferNoSchedule taints that the pod does not tolerate.
func (TaintToleration) Score(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	var n int64
	for i := range node.Node().Spec.Taints {
		t := &node.Node().Spec.Taints[i]
		if t.Effect == v1.TaintEffectPreferNoSchedule &&
			!corev1helpers.TolerationsTolerateTaint(logr.Discard(), pod.Spec.Tolerations, t, true) {
			n++
		}
	}
	return n, nil
}

// ScoreExtensions makes fewer taints better.
func (TaintToleration) ScoreExtensions() fwk.ScoreExtensions { return helper.Descending{} }

// EventsToRegister names nodes whose taints the pod tolerates now.
func (TaintToleration) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		helper.Hinted(fwk.Node, fwk.Add|fwk.UpdateNodeTaint,
			func(_ klog.Logger, pod *v1.Pod, _, n any) (fwk.QueueingHint, error) {
				node, ok := n.(*v1.Node)
				if !ok {
					return fwk.Queue, nil
				}
				_, found := untolerated(pod, node)
				return helper.HintIf(!found)
			}),
		helper.Event(fwk.TargetPod, fwk.UpdatePodToleration),
	}, nil
}

func untolerated(pod *v1.Pod, node *v1.Node) (v1.Taint, bool) {
	if len(node.Spec.Taints) == 0 {
		return v1.Taint{}, false
	}
	return corev1helpers.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, pod.Spec.Tolerations,
		func(t *v1.Taint) bool {
			return t.Effect == v1.TaintEffectNoSchedule || t.Effect == v1.TaintEffectNoExecute
		}, true)
}

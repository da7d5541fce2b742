package nodelifecycle

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/barque/barque/controllers/pods"
)

// unknowable are the conditions that only the kubelet can know.
var unknowable = []corev1.NodeConditionType{
	corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
}

// markUnknown returns the conditions of a node that was silent for too long, and whether they are
// new.
func markUnknown(status corev1.NodeStatus, now time.Time) ([]corev1.NodeCondition, bool) {
	conditions, changed := slices.Clone(status.Conditions), false
	for _, t := range unknowable {
		i := slices.IndexFunc(conditions, func(c corev1.NodeCondition) bool { return c.Type == t })
		if i < 0 {
			conditions = append(conditions, corev1.NodeCondition{
				Type: t, Status: corev1.ConditionUnknown, LastTransitionTime: metav1.NewTime(now),
				Reason: "NodeStatusNeverUpdated", Message: "Kubelet never posted node status.",
			})
			changed = true
			continue
		}
		if c := &conditions[i]; c.Status != corev1.ConditionUnknown {
			c.Status, c.LastTransitionTime = corev1.ConditionUnknown, metav1.NewTime(now)
			c.Reason, c.Message = "NodeStatusUnknown", "Kubelet stopped posting node status."
			changed = true
		}
	}
	return conditions, changed
}

// markIll returns the conditions of a live node that reports itself as ill, and whether they are
// new. A node that is not ready already has written its reason.
func markIll(status corev1.NodeStatus, ill string, now time.Time) ([]corev1.NodeCondition, bool) {
	conditions := slices.Clone(status.Conditions)
	i := slices.IndexFunc(conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if i < 0 || conditions[i].Status != corev1.ConditionTrue {
		return conditions, false
	}
	c := &conditions[i]
	c.Status, c.LastTransitionTime = corev1.ConditionFalse, metav1.NewTime(now)
	c.Reason, c.Message = "NodeIll",
		"The node says by gossip that it is ill: "+ill+". Its kubelet has not reported that itself."
	return conditions, true
}

func statusOf(node *corev1.Node, t corev1.NodeConditionType) corev1.ConditionStatus {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == t {
			return node.Status.Conditions[i].Status
		}
	}
	return ""
}

func hasTaint(node *corev1.Node, key string, effect corev1.TaintEffect) bool {
	return slices.ContainsFunc(node.Spec.Taints,
		func(t corev1.Taint) bool { return t.Key == key && t.Effect == effect })
}

// ours are the taints that this controller puts on and takes off. All others are users'.
func ours(t *corev1.Taint) bool {
	switch t.Key {
	case corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable:
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	case corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure, corev1.TaintNodePIDPressure,
		corev1.TaintNodeNetworkUnavailable, corev1.TaintNodeUnschedulable:
		return t.Effect == corev1.TaintEffectNoSchedule
	}
	return false
}

// taintsOf returns the taints that a node should have. An unreachable node gets no new pods, even
// while its conditions still are ready because its kubelet cannot write. evicting reports whether a
// node without one may get an evicting taint; with allGone no node may have one.
func taintsOf(node *corev1.Node, unreachable bool, evicting func() bool, allGone bool, now time.Time) []corev1.Taint {
	var key string
	switch statusOf(node, corev1.NodeReady) {
	case corev1.ConditionTrue:
	case corev1.ConditionUnknown:
		key = corev1.TaintNodeUnreachable
	default: // False, or never written
		key = corev1.TaintNodeNotReady
	}
	var want []corev1.Taint
	add := func(key string) { want = append(want, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}) }
	if key != "" {
		add(key)
	}
	if unreachable && key != corev1.TaintNodeUnreachable {
		add(corev1.TaintNodeUnreachable)
	}
	for _, pressure := range []struct {
		condition corev1.NodeConditionType
		taint     string
	}{
		{corev1.NodeMemoryPressure, corev1.TaintNodeMemoryPressure},
		{corev1.NodeDiskPressure, corev1.TaintNodeDiskPressure},
		{corev1.NodePIDPressure, corev1.TaintNodePIDPressure},
		{corev1.NodeNetworkUnavailable, corev1.TaintNodeNetworkUnavailable},
	} {
		if statusOf(node, pressure.condition) == corev1.ConditionTrue {
			add(pressure.taint)
		}
	}
	if node.Spec.Unschedulable {
		add(corev1.TaintNodeUnschedulable)
	}
	// A node that has written nothing is new and has no pods to evict.
	told := statusOf(node, corev1.NodeReady) != ""
	if key != "" && told && !allGone && (hasEvicting(node) || evicting()) {
		added := metav1.NewTime(now)
		want = append(want, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute, TimeAdded: &added})
	}
	return mergeTaints(node.Spec.Taints, want)
}

// hasEvicting reports whether a node carries one of our taints that evict: going from one to the
// other costs nothing of the zone's budget.
func hasEvicting(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return ours(&t) && t.Effect == corev1.TaintEffectNoExecute
	})
}

// mergeTaints keeps users' taints, and ours that are still wanted, in their order, and appends the
// new ones.
func mergeTaints(have, want []corev1.Taint) []corev1.Taint {
	in := func(taints []corev1.Taint, t *corev1.Taint) bool {
		return slices.ContainsFunc(taints, func(o corev1.Taint) bool { return t.MatchTaint(&o) })
	}
	var out []corev1.Taint
	for i := range have {
		if !ours(&have[i]) || in(want, &have[i]) {
			out = append(out, have[i])
		}
	}
	for i := range want {
		if !in(have, &want[i]) {
			out = append(out, want[i])
		}
	}
	return out
}

// evictingTaint is a taint that evicts, and since when.
type evictingTaint struct {
	taint *corev1.Taint
	since time.Time
}

// evictionTime returns when a pod must leave a node with these taints; never when ok is false. For
// a pod that came after a taint, its toleration counts from its arrival.
func evictionTime(pod *corev1.Pod, taints []evictingTaint, came time.Time) (at time.Time, ok bool) {
	for _, t := range taints {
		since := t.since
		if came.After(since) {
			since = came
		}
		when, leaves := leavesFor(pod, t.taint, since)
		if leaves && (!ok || when.Before(at)) {
			at, ok = when, true
		}
	}
	return at, ok
}

// arrival is when a pod was given to its node, by the clock of the server that wrote it down.
func arrival(pod *corev1.Pod) time.Time {
	if c := pods.Condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionTrue &&
		!c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	return pod.CreationTimestamp.Time
}

// leavesFor applies the first toleration that matches a taint, as Kubernetes does.
func leavesFor(pod *corev1.Pod, t *corev1.Taint, since time.Time) (at time.Time, leaves bool) {
	for i := range pod.Spec.Tolerations {
		tol := &pod.Spec.Tolerations[i]
		if !tol.ToleratesTaint(klog.Background(), t, true) {
			continue
		}
		if tol.TolerationSeconds == nil {
			return time.Time{}, false
		}
		return since.Add(time.Duration(max(0, *tol.TolerationSeconds)) * time.Second), true
	}
	return since, true
}

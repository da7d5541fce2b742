package daemonset

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// fit is whether a node should have a pod: run means that it should get one, keep that it may keep
// an existing one.
type fit struct{ run, keep bool }

func fitOf(
	spec *corev1.PodSpec, node *corev1.Node, affinity nodeaffinity.RequiredNodeAffinity,
	tolerations []corev1.Toleration,
) fit {
	if spec.NodeName != "" && spec.NodeName != node.Name {
		return fit{}
	}
	if matches, err := affinity.Match(node); err != nil || !matches {
		return fit{}
	}
	bars := func(effects ...corev1.TaintEffect) bool {
		_, found := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, tolerations,
			func(t *corev1.Taint) bool { return slices.Contains(effects, t.Effect) }, true)
		return found
	}
	return fit{
		run:  !bars(corev1.TaintEffectNoExecute, corev1.TaintEffectNoSchedule),
		keep: !bars(corev1.TaintEffectNoExecute),
	}
}

// withDefaults adds the tolerations of every DaemonSet's pods, which stay on their node under any
// condition.
func withDefaults(tolerations []corev1.Toleration, hostNetwork bool) []corev1.Toleration {
	type taint struct {
		key    string
		effect corev1.TaintEffect
	}
	taints := []taint{
		{corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute},
		{corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute},
		{corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule},
		{corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule},
		{corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule},
		{corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule},
	}
	if hostNetwork {
		taints = append(taints, taint{corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule})
	}
	out := slices.Clone(tolerations)
	for _, t := range taints {
		// The same one for a limited time gives way to the one for ever.
		out = slices.DeleteFunc(out, func(o corev1.Toleration) bool {
			return o.Key == t.key && o.Effect == t.effect && o.Operator == corev1.TolerationOpExists
		})
		out = append(out, corev1.Toleration{Key: t.key, Operator: corev1.TolerationOpExists, Effect: t.effect})
	}
	return out
}

// bindTo makes the scheduler put a pod on a node and on no other.
func bindTo(spec *corev1.PodSpec, node string) {
	only := []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
		{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	required := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil {
		required = &corev1.NodeSelector{}
		spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = required
	}
	required.NodeSelectorTerms = only
}

// targetOf returns the node that a pod is on or made for.
func targetOf(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == metav1.ObjectNameField && field.Operator == corev1.NodeSelectorOpIn &&
				len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}

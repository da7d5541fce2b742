// Package pods holds the workload controllers' common rules about pods: which are active, ready and
// available, making one from a template, their owner, and which one to delete first. All of it is
// pure; the writes are in control.go, the reads from informers in index.go.
package pods

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Finished reports whether the pod has run to its end.
func Finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Active reports whether the pod counts towards a number of replicas.
func Active(pod *corev1.Pod) bool { return !Finished(pod) && pod.DeletionTimestamp == nil }

// Terminating reports whether the pod is on its way out and has not ended yet.
func Terminating(pod *corev1.Pod) bool { return !Finished(pod) && pod.DeletionTimestamp != nil }

// Condition returns the pod's condition of a type, nil when it has none.
func Condition(pod *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == t {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// Ready reports whether the pod's Ready condition is true.
func Ready(pod *corev1.Pod) bool {
	c := Condition(pod, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// Available reports whether the pod has been ready for minReadySeconds. For a pod that is ready but
// not long enough, after is the rest of that time.
func Available(pod *corev1.Pod, minReadySeconds int32, now time.Time) (available bool, after time.Duration) {
	if !Ready(pod) {
		return false, 0
	}
	if minReadySeconds == 0 {
		return true, 0
	}
	since := Condition(pod, corev1.PodReady).LastTransitionTime
	if since.IsZero() {
		return false, 0
	}
	left := since.Add(time.Duration(minReadySeconds) * time.Second).Sub(now)
	return left <= 0, max(left, 0)
}

// FromTemplate makes the pod that a controller of the given kind creates. Its name is generated
// from the owner's.
func FromTemplate(template *corev1.PodTemplateSpec, owner metav1.Object, kind schema.GroupVersionKind) *corev1.Pod {
	t := template.DeepCopy()
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       owner.GetNamespace(),
			GenerateName:    generateName(owner.GetName()),
			Labels:          t.Labels,
			Annotations:     t.Annotations,
			Finalizers:      t.Finalizers,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)},
		},
		Spec: t.Spec,
	}
}

// generateName keeps the separating dash where a name is so long that the server will cut it.
func generateName(owner string) string {
	const longest = 253 - 5 // the server appends five characters
	if len(owner)+1 > longest {
		return owner[:longest]
	}
	return owner + "-"
}

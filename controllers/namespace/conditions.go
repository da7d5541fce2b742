package namespace

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// conditionsOf returns the namespace's conditions for the result of a pass, with the types and
// reasons of Kubernetes.
func conditionsOf(was []corev1.NamespaceCondition, r *report, now time.Time) []corev1.NamespaceCondition {
	out := slices.Clone(was)
	set := func(t corev1.NamespaceConditionType, bad bool, reason, message, goodReason, goodMessage string) {
		c := corev1.NamespaceCondition{
			Type: t, Status: corev1.ConditionFalse, Reason: goodReason, Message: goodMessage,
			LastTransitionTime: metav1.NewTime(now),
		}
		if bad {
			c.Status, c.Reason, c.Message = corev1.ConditionTrue, reason, message
		}
		i := slices.IndexFunc(out, func(o corev1.NamespaceCondition) bool { return o.Type == t })
		if i < 0 {
			out = append(out, c)
			return
		}
		if out[i].Status == c.Status {
			c.LastTransitionTime = out[i].LastTransitionTime
		}
		out[i] = c
	}
	set(corev1.NamespaceDeletionDiscoveryFailure, r.discovery != nil, "DiscoveryFailed", text(r.discovery),
		"ResourcesDiscovered", "All resources successfully discovered")
	set(corev1.NamespaceDeletionGVParsingFailure, false, "", "",
		"ParsedGroupVersions", "All legacy kube types successfully parsed")
	set(corev1.NamespaceDeletionContentFailure, r.content != nil, "ContentDeletionFailed", text(r.content),
		"ContentDeleted", "All content successfully deleted, may be waiting on finalization")
	set(corev1.NamespaceContentRemaining, len(r.remaining) > 0, "SomeResourcesRemain",
		"Some resources are remaining: "+
			describe(r.remaining, "%s has %d resource instances",
				func(gvr schema.GroupVersionResource) string { return gvr.GroupResource().String() }),
		"ContentRemoved", "All content successfully removed")
	set(corev1.NamespaceFinalizersRemaining, len(r.finalizers) > 0, "SomeFinalizersRemain",
		"Some content in the namespace has finalizers remaining: "+
			describe(r.finalizers, "%s in %d resource instances", func(f string) string { return f }),
		"ContentHasNoFinalizers", "All content-preserving finalizers finished")
	return out
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

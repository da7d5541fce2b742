package replicaset

import (
	"cmp"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/barque/barque/controllers/pods"
)

// burst bounds how many pods one look at a ReplicaSet creates or deletes.
const burst = 500

// plan has the changes for one ReplicaSet.
type plan struct {
	create int
	delete []*corev1.Pod
	// again is when a ready pod will become available, 0 when no time is waited for.
	again time.Duration
}

// decide compares the pods of a ReplicaSet with the wanted number. related are the pods of all
// ReplicaSets of the same Deployment: nodes with many of them lose pods first.
func decide(set *appsv1.ReplicaSet, mine, related []*corev1.Pod, now time.Time) plan {
	var p plan
	var active []*corev1.Pod
	for _, pod := range mine {
		if pods.Active(pod) {
			active = append(active, pod)
		}
		if _, wait := pods.Available(pod, set.Spec.MinReadySeconds, now); wait > 0 && (p.again == 0 || wait < p.again) {
			p.again = wait
		}
	}
	if set.DeletionTimestamp != nil {
		return p
	}
	switch diff := int(wanted(set)) - len(active); {
	case diff > 0:
		p.create = min(diff, burst)
	case diff < 0:
		pods.ByDeletion(active, related, now)
		p.delete = active[:min(-diff, burst)]
	}
	return p
}

func wanted(set *appsv1.ReplicaSet) int32 {
	if set.Spec.Replicas == nil {
		return 1
	}
	return *set.Spec.Replicas
}

// statusOf computes the status from the pods and from how the last creations and deletions went.
func statusOf(set *appsv1.ReplicaSet, mine []*corev1.Pod, failure *failure, now time.Time) appsv1.ReplicaSetStatus {
	status := *set.Status.DeepCopy()
	status.ObservedGeneration = set.Generation
	status.Replicas, status.FullyLabeledReplicas, status.ReadyReplicas, status.AvailableReplicas = 0, 0, 0, 0
	var terminating int32
	template := labels.Set(set.Spec.Template.Labels).AsSelectorPreValidated()
	for _, pod := range mine {
		if pods.Terminating(pod) {
			terminating++
		}
		if !pods.Active(pod) {
			continue
		}
		status.Replicas++
		if template.Matches(labels.Set(pod.Labels)) {
			status.FullyLabeledReplicas++
		}
		if pods.Ready(pod) {
			status.ReadyReplicas++
		}
		if ok, _ := pods.Available(pod, set.Spec.MinReadySeconds, now); ok {
			status.AvailableReplicas++
		}
	}
	status.TerminatingReplicas = &terminating
	status.Conditions = withFailure(status.Conditions, failure, now)
	return status
}

// failure says why pods could not be created or deleted.
type failure struct {
	reason  string // FailedCreate or FailedDelete
	message string
}

func withFailure(conditions []appsv1.ReplicaSetCondition, f *failure, now time.Time) []appsv1.ReplicaSetCondition {
	i := slices.IndexFunc(conditions,
		func(c appsv1.ReplicaSetCondition) bool { return c.Type == appsv1.ReplicaSetReplicaFailure })
	switch {
	case f == nil && i >= 0:
		return slices.Delete(conditions, i, i+1)
	case f == nil:
		return conditions
	}
	c := appsv1.ReplicaSetCondition{
		Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(now), Reason: f.reason, Message: f.message,
	}
	if i < 0 {
		return append(conditions, c)
	}
	if conditions[i].Status == c.Status {
		if conditions[i].Reason == c.Reason {
			// the message has a new name in it each time: writing it would cause the next look at
			// once
			return conditions
		}
		c.LastTransitionTime = conditions[i].LastTransitionTime
	}
	conditions[i] = c
	return conditions
}

// sameStatus reports whether writing b over a would change anything.
func sameStatus(a, b appsv1.ReplicaSetStatus) bool { return equality.Semantic.DeepEqual(a, b) }

// oldestFirst orders ReplicaSets so that of several with overlapping selectors the same one always
// gets an orphan first.
func oldestFirst(sets []*appsv1.ReplicaSet) {
	slices.SortFunc(sets, func(a, b *appsv1.ReplicaSet) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return cmp.Compare(a.Name, b.Name)
	})
}

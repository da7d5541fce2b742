package job

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/barque/barque/controllers/pods"
)

// count updates the numbers of the status, and finds the pods that lose their finalizer after the
// write.
func (v *view) count(p *plan, end *batchv1.JobCondition) {
	uncounted := p.status.UncountedTerminatedPods
	remaining := sets.New[types.UID]()
	for _, pod := range v.pods {
		if tracked(pod) {
			remaining.Insert(pod.UID)
		}
	}
	p.status.Succeeded += settle(&uncounted.Succeeded, remaining)
	p.status.Failed += settle(&uncounted.Failed, remaining)

	fresh := 0 // indexes that are completed by this look
	for _, pod := range v.pods {
		if !tracked(pod) || slices.Contains(p.discard, pod) || !v.releasable(pod, end) {
			continue
		}
		p.release = append(p.release, pod)
		switch {
		case v.noted.Has(pod.UID):
		case pod.Status.Phase == corev1.PodSucceeded && indexed(v.job):
			if i, ok := indexOf(pod); ok && i < v.completions() && !v.done.has(i) {
				fresh++
			}
		case pod.Status.Phase == corev1.PodSucceeded:
			uncounted.Succeeded = append(uncounted.Succeeded, pod.UID)
		case v.lost(pod) || (end != nil && end.Type == batchv1.JobFailureTarget):
			if v.valid(pod) && judge(v.job.Spec.PodFailurePolicy, pod).counts() {
				uncounted.Failed = append(uncounted.Failed, pod.UID)
			}
		}
		if fresh+len(uncounted.Succeeded)+len(uncounted.Failed) >= maxUncounted {
			break // the others follow when these are counted
		}
	}
	if indexed(v.job) {
		p.status.CompletedIndexes = v.doneNow.String()
		p.status.Succeeded = int32(v.doneNow.count())
		p.status.FailedIndexes = nil
		if v.job.Spec.BackoffLimitPerIndex != nil {
			failed := v.failedNow.String()
			p.status.FailedIndexes = &failed
		}
	}
	var ready, terminating int32
	for _, pod := range v.pods {
		switch {
		case pods.Terminating(pod):
			terminating++
		case pods.Active(pod) && pods.Ready(pod):
			ready++
		}
	}
	p.status.Active, p.status.Ready, p.status.Terminating = int32(len(v.active)), &ready, &terminating
}

// releasable reports whether nothing more depends on the pod's finalizer.
func (v *view) releasable(pod *corev1.Pod, end *batchv1.JobCondition) bool {
	if v.job.DeletionTimestamp != nil || end != nil || pod.Status.Phase == corev1.PodSucceeded {
		return true
	}
	if !v.lost(pod) {
		return false
	}
	// The pod that comes after it inherits its count of failures.
	i, ok := indexOf(pod)
	return !ok || v.waiting[i] == nil || v.waiting[i].UID != pod.UID
}

// settle takes the pods without finalizer out of a list, and returns how many there were.
func settle(list *[]types.UID, remaining sets.Set[types.UID]) int32 {
	was := len(*list)
	*list = slices.DeleteFunc(*list, func(uid types.UID) bool { return !remaining.Has(uid) })
	return int32(was - len(*list))
}

// account adds the latest creations and deletions of pods to a computed status, which saves a
// second write.
func account(status *batchv1.JobStatus, created int, deleted []*corev1.Pod) {
	status.Active += int32(created - len(deleted))
	ready, terminating := *status.Ready, *status.Terminating+int32(len(deleted))
	for _, pod := range deleted {
		if pods.Ready(pod) {
			ready--
		}
	}
	status.Ready, status.Terminating = &ready, &terminating
}

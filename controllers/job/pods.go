package job

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/controllers/pods"
)

const (
	indexEnv = "JOB_COMPLETION_INDEX"
	// longestPrefix leaves room for the suffix that the server appends to a generated name.
	longestPrefix = 63 - 5
)

// tracked reports whether the pod has not been counted for good: it has the finalizer.
func tracked(pod *corev1.Pod) bool {
	return slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer)
}

// indexOf returns the completion index of a pod.
func indexOf(pod *corev1.Pod) (int, bool) {
	i, err := strconv.Atoi(pod.Annotations[batchv1.JobCompletionIndexAnnotation])
	return i, err == nil && i >= 0
}

// failures reads an annotation that counts the failures of an index.
func failures(pod *corev1.Pod, annotation string) int32 {
	n, err := strconv.Atoi(pod.Annotations[annotation])
	if err != nil || n < 0 || n > math.MaxInt32 {
		return 0
	}
	return int32(n)
}

// allFailures counts the failures of an index before this pod, including failures that a policy
// ignores.
func allFailures(pod *corev1.Pod) int32 {
	return failures(pod, batchv1.JobIndexFailureCountAnnotation) +
		failures(pod, batchv1.JobIndexIgnoredFailureCountAnnotation)
}

// ended returns when a pod came to its end: by its containers, by the kubelet's word that it is not
// ready any more, or by its deletion.
func ended(pod *corev1.Pod) time.Time {
	if t, ok := lastExit(pod); ok {
		return t
	}
	if c := pods.Condition(pod, corev1.PodReady); c != nil && c.Status == corev1.ConditionFalse &&
		!c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	if pod.DeletionTimestamp != nil {
		var grace int64
		if pod.DeletionGracePeriodSeconds != nil {
			grace = *pod.DeletionGracePeriodSeconds
		}
		return pod.DeletionTimestamp.Add(-time.Duration(grace) * time.Second)
	}
	return pod.CreationTimestamp.Time
}

// lastExit returns when the last container ended, sidecars included; false while one runs.
func lastExit(pod *corev1.Pod) (last time.Time, all bool) {
	list := slices.Clone(pod.Status.ContainerStatuses)
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			continue
		}
		for _, status := range pod.Status.InitContainerStatuses {
			if status.Name == c.Name {
				list = append(list, status)
			}
		}
	}
	for i := range list {
		end := list[i].State.Terminated
		if end == nil || end.FinishedAt.IsZero() {
			return time.Time{}, false
		}
		if end.FinishedAt.After(last) {
			last = end.FinishedAt.Time
		}
	}
	return last, len(list) > 0
}

// newPod makes a pod of a job without indexes.
func newPod(job *batchv1.Job) *corev1.Pod {
	pod := pods.FromTemplate(&job.Spec.Template, job, kind)
	if !tracked(pod) {
		pod.Finalizers = append(pod.Finalizers, batchv1.JobTrackingFinalizer)
	}
	return pod
}

// newIndexedPod makes the pod of an index. before is the failed pod that it replaces, if that one's
// failures count per index.
func newIndexedPod(job *batchv1.Job, index int, before *corev1.Pod) *corev1.Pod {
	pod := newPod(job)
	text := strconv.Itoa(index)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Annotations[batchv1.JobCompletionIndexAnnotation] = text
	pod.Labels[batchv1.JobCompletionIndexAnnotation] = text
	pod.Spec.Hostname = job.Name + "-" + text
	suffix := "-" + text + "-"
	pod.GenerateName = job.Name[:min(len(job.Name), longestPrefix-len(suffix))] + suffix
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			tellIndex(&containers[i])
		}
	}
	if job.Spec.BackoffLimitPerIndex != nil {
		counted, ignored := int32(0), int32(0)
		if before != nil {
			counted, ignored = failures(before, batchv1.JobIndexFailureCountAnnotation),
				failures(before, batchv1.JobIndexIgnoredFailureCountAnnotation)
			if judge(job.Spec.PodFailurePolicy, before).counts() {
				counted++
			} else {
				ignored++
			}
		}
		pod.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(int(counted))
		if ignored > 0 {
			pod.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation] = strconv.Itoa(int(ignored))
		}
	}
	return pod
}

func tellIndex(c *corev1.Container) {
	if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == indexEnv }) {
		return
	}
	c.Env = append(c.Env, corev1.EnvVar{Name: indexEnv, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{
			FieldPath: fmt.Sprintf("metadata.labels['%s']", batchv1.JobCompletionIndexAnnotation)},
	}})
}

package job

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/barque/barque/controllers/runtime"
)

// orphans makes the loop that removes the tracking finalizer from pods that no job will count:
// their job is gone, has finished, or has released them. With it they could not be deleted.
func (t *term) orphans() *runtime.Loop {
	loop := runtime.NewLoop("job-orphans", 1, t.cfg.Logger, t.reconcileOrphan)
	runtime.Watch(loop, t.pods, func(_, now *corev1.Pod) []runtime.Key {
		if now == nil || !tracked(now) {
			return nil
		}
		if job, theirs := t.ownerOf(now); !theirs || (job != nil && !finished(job)) {
			return nil
		}
		return []runtime.Key{runtime.KeyOf(now)}
	})
	runtime.Watch(loop, t.jobs, func(old, now *batchv1.Job) []runtime.Key {
		job := now
		if now == nil {
			job = old
		}
		if now != nil && !finished(now) {
			return nil
		}
		owned, _, err := runtime.Controlled[corev1.Pod](t.pods, job.Namespace, job.UID)
		if err != nil {
			return nil
		}
		var keys []runtime.Key
		for _, pod := range owned {
			if tracked(pod) {
				keys = append(keys, runtime.KeyOf(pod))
			}
		}
		return keys
	})
	return loop
}

// ownerOf returns the job of a pod from the informer, nil when it has none or the job is gone.
// theirs is false when the pod belongs to another kind.
func (t *term) ownerOf(pod *corev1.Pod) (job *batchv1.Job, theirs bool) {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil {
		return nil, true
	}
	if ref.Kind != kind.Kind || ref.APIVersion != kind.GroupVersion().String() {
		return nil, false
	}
	job, err := t.list.Jobs(pod.Namespace).Get(ref.Name)
	if err != nil || job.UID != ref.UID {
		return nil, true
	}
	return job, true
}

func (t *term) reconcileOrphan(ctx context.Context, key runtime.Key) (time.Duration, error) {
	pod, err := corelisters.NewPodLister(t.pods.GetIndexer()).Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	job, theirs := t.ownerOf(pod)
	if ref := metav1.GetControllerOfNoCopy(pod); theirs && job == nil && ref != nil {
		// The informer of jobs may be behind the one of pods: a pod of a new job must stay tracked.
		job, err = t.client.BatchV1().Jobs(key.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			job = nil
		case err != nil:
			return 0, fmt.Errorf("looking for the job of pod %s: %w", key, err)
		case job.UID != ref.UID:
			job = nil
		}
	}
	if !theirs || !tracked(pod) || (job != nil && (managedElsewhere(job) || !finished(job))) {
		return 0, nil
	}
	_, err = untrack(ctx, t.client, pod)
	return 0, err
}

// untrack removes the tracking finalizer from a pod. It returns nil when the pod is not there.
func untrack(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) (*corev1.Pod, error) {
	if !tracked(pod) {
		return nil, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": pod.UID, "$deleteFromPrimitiveList/finalizers": []string{batchv1.JobTrackingFinalizer}}})
	if err != nil {
		return nil, err
	}
	now, err := client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{})
	switch {
	// Another UID: it is not the pod any more.
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsInvalid(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("removing the tracking finalizer of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return now, nil
}

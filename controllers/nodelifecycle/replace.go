package nodelifecycle

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-helpers/node/topology"

	"github.com/barque/barque/controllers/pods"
	"github.com/barque/barque/controllers/runtime"
)

// unacknowledgedFor is how long a pod may wait for the kubelet of an unreachable node. It counts
// from when the pod is both bound and seen unreachable. A live kubelet takes a tenth of this. A
// node that said good-bye has its grace.
const unacknowledgedFor = time.Second

// replacer deletes pods on an unreachable node that its kubelet has never acknowledged, so that
// their controllers make others. The scheduler places pods on a dead node until the death is known,
// and these would wait for the eviction. Its keys are pods.
type replacer struct {
	*term
	loop     *runtime.Loop
	listPods corelisters.PodLister

	mu     sync.Mutex
	since  map[types.UID]time.Time // when a pod was first seen to wait so
	graces map[string]time.Time    // ends of the graces of nodes that have such pods, by name
}

func newReplacer(t *term) *replacer {
	r := &replacer{term: t, listPods: t.cfg.Informers.Core().V1().Pods().Lister(), since: map[types.UID]time.Time{},
		graces: map[string]time.Time{}}
	r.loop = runtime.NewLoop("unacknowledged-pods", 8, t.cfg.Logger, r.reconcile)
	runtime.Watch(r.loop, t.pods, func(old, now *corev1.Pod) []runtime.Key {
		switch {
		case now == nil:
			r.forget(old.UID)
			return nil
		case replaceable(now) && t.memory.isUnreachable(now.Spec.NodeName):
			return []runtime.Key{runtime.KeyOf(now)}
		}
		return nil
	})
	return r
}

// look takes up the pods of a node that is unreachable.
func (r *replacer) look(node string) error {
	onNode, err := pods.OnNode(r.pods, node)
	if err != nil {
		return fmt.Errorf("finding the pods of node %s: %w", node, err)
	}
	for _, pod := range onNode {
		if replaceable(pod) {
			r.loop.Add(runtime.KeyOf(pod))
		}
	}
	return nil
}

// replaceable reports whether a pod may be deleted for another to take its place, if its node is
// unreachable. An acknowledged pod may run. A pod without a controller would not be replaced. A pod
// that tolerates unreachable nodes without limit is meant to stay.
func replaceable(pod *corev1.Pod) bool {
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || pod.Status.StartTime != nil ||
		pod.Status.Phase != corev1.PodPending || metav1.GetControllerOf(pod) == nil {
		return false
	}
	for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
		taint := corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: effect}
		if _, leaves := leavesFor(pod, &taint, time.Time{}); !leaves {
			return false
		}
	}
	return true
}

func (r *replacer) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	pod, err := r.listPods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if !replaceable(pod) || !r.memory.isUnreachable(pod.Spec.NodeName) {
		r.forget(pod.UID)
		return 0, nil
	}
	now := time.Now()
	end := r.waitingSince(pod.UID, now).Add(unacknowledgedFor)
	// The node may be starting again. A Job counts a pod that is deleted as a failed one.
	end = later(end, r.graceAfterGoodbye(pod.Spec.NodeName, now))
	if wait := end.Sub(now); wait > 0 {
		return wait, nil
	}
	node, err := r.list.Get(pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return 0, nil // package podgc's
	}
	if err != nil {
		return 0, err
	}
	if zones := r.countZones(now); allGone(zones) && zones[topology.GetZoneKey(node)].gone > 0 {
		return r.cfg.Settings.Period, nil // it would not be better off elsewhere
	}
	switch answers := r.answers(ctx, node); {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case answers:
		return r.cfg.Settings.Period, nil
	}
	return 0, r.replace(ctx, pod)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// replace deletes the seen version of the pod: if its kubelet has acknowledged it meanwhile, the
// delete is a conflict and nothing happens.
func (r *replacer) replace(ctx context.Context, pod *corev1.Pod) error {
	marked, err := markDisrupted(ctx, r.client, pod, "NodeUnreachable",
		"The pod's node became unreachable before it acknowledged the pod.")
	if err != nil || !replaceable(marked) {
		return err
	}
	err = r.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &marked.UID, ResourceVersion: &marked.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting pod %s/%s, which its node has not acknowledged: %w", pod.Namespace, pod.Name, err)
	}
	if err == nil {
		r.cfg.Logger.Warn("pod was given to a node that is unreachable: deleted, for its controller to replace it",
			"pod", runtime.KeyOf(pod), "node", pod.Spec.NodeName)
		r.recorder.Eventf(pod, corev1.EventTypeWarning, "NodeUnreachable",
			"Node %s became unreachable before it acknowledged the pod: deleting it to be replaced", pod.Spec.NodeName)
		r.loop.Writes().Deleted(runtime.KeyOf(pod), r.pods, runtime.KeyOf(pod), pod.UID)
	}
	return nil
}

func (r *replacer) waitingSince(pod types.UID, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if since, ok := r.since[pod]; ok {
		return since
	}
	r.since[pod] = now
	return now
}

// graceAfterGoodbye returns the end of the grace of a node that said good-bye; zero without one. A
// starting node is heard before its kubelet answers, and its good-bye still counts.
func (r *replacer) graceAfterGoodbye(node string, now time.Time) time.Time {
	life, heardOf := r.cfg.Liveness.Life(node)
	r.mu.Lock()
	defer r.mu.Unlock()
	if heardOf && life.State == Left {
		r.graces[node] = life.Since.Add(r.cfg.Settings.GoodbyeGrace)
	}
	maps.DeleteFunc(r.graces, func(_ string, end time.Time) bool { return !now.Before(end) })
	return r.graces[node]
}

func (r *replacer) forget(pod types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.since, pod)
}

package nodelifecycle

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/barque/barque/controllers/pods"
	"github.com/barque/barque/controllers/runtime"
)

// evictor deletes the pods that do not tolerate their node's NoExecute taints, each at the end of
// its tolerationSeconds. Its keys are pods.
type evictor struct {
	*Controller
	client   kubernetes.Interface
	recorder record.EventRecorder
	loop     *runtime.Loop
	listPods corelisters.PodLister
}

func newEvictor(c *Controller, client kubernetes.Interface, recorder record.EventRecorder) *evictor {
	e := &evictor{Controller: c, client: client, recorder: recorder,
		listPods: c.cfg.Informers.Core().V1().Pods().Lister()}
	e.loop = runtime.NewLoop("taint-eviction", 8, c.cfg.Logger, e.reconcile)
	runtime.Watch(e.loop, c.pods, func(old, now *corev1.Pod) []runtime.Key {
		if now == nil || now.Spec.NodeName == "" ||
			(old != nil && old.Spec.NodeName != "" &&
				equality.Semantic.DeepEqual(old.Spec.Tolerations, now.Spec.Tolerations)) {
			return nil
		}
		return []runtime.Key{runtime.KeyOf(now)}
	})
	runtime.Watch(e.loop, c.nodes, func(old, now *corev1.Node) []runtime.Key {
		if now == nil || !evicts(now) || (old != nil && slices.EqualFunc(old.Spec.Taints, now.Spec.Taints, sameTaint)) {
			return nil
		}
		return e.podsOn(now.Name)
	})
	return e
}

func evicts(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints,
		func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute })
}

func sameTaint(a, b corev1.Taint) bool {
	return a.Key == b.Key && a.Effect == b.Effect && a.Value == b.Value && a.TimeAdded.Equal(b.TimeAdded)
}

func (e *evictor) podsOn(node string) []runtime.Key {
	onNode, err := pods.OnNode(e.pods, node)
	if err != nil {
		e.cfg.Logger.Error("finding the pods of a tainted node", "node", node, "err", err)
	}
	return pods.Keys(onNode)
}

func (e *evictor) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	pod, err := e.listPods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil || pod.DeletionTimestamp != nil || pod.Spec.NodeName == "" {
		return 0, err
	}
	node, err := e.list.Get(pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return 0, nil // package podgc's
	}
	if err != nil {
		return 0, err
	}
	now := time.Now()
	at, leaves := evictionTime(pod, e.sightings.see(node, now), e.arrivals.of(pod, now))
	switch {
	case !leaves:
		return 0, nil
	case now.Before(at):
		return at.Sub(now), nil
	// the last look
	case hasTaint(node, corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute) && e.answers(ctx, node):
		return e.cfg.Settings.Period, nil
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	}
	return 0, e.evict(ctx, pod)
}

func (e *evictor) evict(ctx context.Context, pod *corev1.Pod) error {
	if _, err := markDisrupted(ctx, e.client, pod, "DeletionByTaintManager",
		"Taint manager: deleting due to NoExecute taint"); err != nil {
		return err
	}
	e.recorder.Eventf(pod, corev1.EventTypeNormal, "TaintManagerEviction", "Marking for deletion Pod %s/%s",
		pod.Namespace, pod.Name)
	err := e.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("evicting pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	e.loop.Writes().Deleted(runtime.KeyOf(pod), e.pods, runtime.KeyOf(pod), pod.UID)
	return nil
}

// markDisrupted writes the reason of the end into the pod's status; Jobs count such pods
// separately. It returns the written pod, or the given one when the pod is gone or replaced.
func markDisrupted(
	ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, reason, message string,
) (*corev1.Pod, error) {
	if c := pods.Condition(pod, corev1.DisruptionTarget); c != nil && c.Status == corev1.ConditionTrue {
		return pod, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
			Reason: reason, Message: message,
		}}},
	})
	if err != nil {
		return nil, err
	}
	marked, err := client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return pod, nil
	case err != nil:
		return nil, fmt.Errorf("marking pod %s/%s as disrupted: %w", pod.Namespace, pod.Name, err)
	}
	return marked, nil
}

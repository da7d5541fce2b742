package scheduler

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// report writes why the pod has no node: an event, and its PodScheduled condition when that says
// something else. nominated is the node being freed for it, or "".
func (t *term) report(ctx context.Context, pod *v1.Pod, reason, message, nominated string) {
	t.events.event(pod, v1.EventTypeWarning, "FailedScheduling", "Scheduling", message)
	want := v1.PodCondition{
		Type:               v1.PodScheduled,
		Status:             v1.ConditionFalse,
		ObservedGeneration: pod.Generation,
		LastTransitionTime: metav1.NewTime(t.cfg.Clock.Now()),
		Reason:             reason,
		Message:            message,
	}
	have := condition(pod, v1.PodScheduled)
	if have != nil && have.Status == want.Status {
		want.LastTransitionTime = have.LastTransitionTime
		if have.Reason == want.Reason && have.Message == want.Message && pod.Status.NominatedNodeName == nominated {
			return
		}
	}
	t.patchStatus(ctx, pod, want, nominated)
}

// patchStatus writes a condition of one pod, by its UID.
func (t *term) patchStatus(ctx context.Context, pod *v1.Pod, c v1.PodCondition, nominated string) {
	status := map[string]any{"conditions": []v1.PodCondition{c}}
	if nominated != pod.Status.NominatedNodeName {
		status["nominatedNodeName"] = nominated
	}
	t.writes.do(pod.UID, func() {
		if err := t.patch(ctx, pod, status); err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
			t.log.Warn("cannot write a pod's status", "namespace", pod.Namespace, "pod", pod.Name, "err", err)
		}
	})
}

func (t *term) patch(ctx context.Context, pod *v1.Pod, status map[string]any) error {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status":   status,
	})
	if err != nil {
		return fmt.Errorf("encode status patch: %w", err)
	}
	_, err = t.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body,
		metav1.PatchOptions{}, "status")
	return err
}

// evict makes room: it writes the reason into the victim's status and deletes the victim. The
// kubelet grants the grace period. done gets the API's error. It does not wait for pending writes
// of the victim.
func (t *term) evict(ctx context.Context, victim, preemptor *v1.Pod, done func(error)) {
	why := fmt.Sprintf("%s: preempting to accommodate a higher priority pod", preemptor.Spec.SchedulerName)
	t.writes.beside(func() {
		status := map[string]any{"conditions": []v1.PodCondition{{
			Type:               v1.DisruptionTarget,
			Status:             v1.ConditionTrue,
			ObservedGeneration: victim.Generation,
			LastTransitionTime: metav1.NewTime(t.cfg.Clock.Now()),
			Reason:             v1.PodReasonPreemptionByScheduler,
			Message:            why,
		}}}
		err := t.patch(ctx, victim, status)
		if err == nil {
			err = t.client.CoreV1().Pods(victim.Namespace).Delete(ctx, victim.Name,
				*metav1.NewPreconditionDeleteOptions(string(victim.UID)))
		}
		if ctx.Err() != nil {
			return // the term is over
		}
		switch {
		case err == nil:
			t.events.event(victim, v1.EventTypeNormal, "Preempted", "Preempting",
				fmt.Sprintf("Preempted by pod %s on node %s", preemptor.UID, victim.Spec.NodeName))
		case !apierrors.IsNotFound(err):
			t.log.Warn("cannot preempt a pod", "namespace", victim.Namespace, "pod", victim.Name, "err", err)
		}
		done(err)
	})
}

// denominate takes the nominated node from a pod, and has it tried again.
func (t *term) denominate(ctx context.Context, pod *v1.Pod) {
	t.nominees.Forget(pod.UID)
	t.writes.do(pod.UID, func() {
		err := t.patch(ctx, pod, map[string]any{"nominatedNodeName": ""})
		if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
			t.log.Warn("cannot clear a pod's nominated node", "namespace", pod.Namespace, "pod", pod.Name, "err", err)
		}
	})
	t.queue.Wake(pod.UID)
}

func condition(pod *v1.Pod, kind v1.PodConditionType) *v1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

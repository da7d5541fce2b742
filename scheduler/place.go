package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/queue"
)

// scheduleOne decides about one pod and acts on the decision.
func (t *term) scheduleOne(ctx context.Context, p *queue.Pod) {
	pod := p.GetPod()
	profile := t.profiles[pod.Spec.SchedulerName]
	if profile == nil || t.cache.Has(pod.UID) {
		t.queue.Done(p)
		return
	}
	for _, lost := range t.cache.Expire() {
		t.log.Warn("a bound pod never appeared; its room counts as free again",
			"namespace", lost.Namespace, "pod", lost.Name, "node", lost.Spec.NodeName)
	}
	began := t.cfg.Clock.Now()
	t.cache.Update(t.snapshot)
	state := framework.NewCycleStateFor(p.Info)
	node, err := t.decide(ctx, profile, state, pod)
	if err != nil {
		t.failed(ctx, profile, state, p, began, err)
		return
	}
	t.meters.algorithm.Observe(t.cfg.Clock.Since(began).Seconds())
	t.place(ctx, profile, state, p, began, node)
}

// place assumes the pod on the node and binds it outside the loop.
func (t *term) place(
	ctx context.Context, profile *framework.Profile, state fwk.CycleState, p *queue.Pod, began time.Time, node string,
) {
	info := p.Info.OnNode(node)
	pod := info.GetPod()
	if err := t.cache.Assume(info); err != nil {
		t.failed(ctx, profile, state, p, began, err)
		return
	}
	if s := profile.Reserve(ctx, state, pod, node); !s.IsSuccess() {
		t.cache.Forget(pod.UID)
		t.failed(ctx, profile, state, p, began, fmt.Errorf("reserve plugin %q: %w", s.Plugin(), s.AsError()))
		return
	}
	t.nominees.Forget(pod.UID)
	t.queue.Done(p)
	// Volumes and devices may take minutes. Pods without any must not wait for them.
	var ready *fwk.Status
	t.writes.doAfter(pod.UID,
		func() { ready = profile.PreBind(ctx, state, pod, node) },
		func() { t.bind(ctx, profile, state, p, began, pod, ready) })
}

// bind writes the decision if the preparation succeeded. It runs in a goroutine of writes and must
// not read the snapshot.
func (t *term) bind(
	ctx context.Context, profile *framework.Profile, state fwk.CycleState, p *queue.Pod, began time.Time, pod *v1.Pod,
	status *fwk.Status,
) {
	node := pod.Spec.NodeName
	if status.IsSuccess() {
		status = profile.Bind(ctx, state, pod, node)
	}
	if status.IsSuccess() {
		t.bound(profile, p, began, pod)
		return
	}
	if ctx.Err() != nil {
		return // the term is over; the next leader sees the result of the write
	}
	err := status.AsError()
	now := t.outcome(ctx, pod, err)
	if now == bindDone {
		t.bound(profile, p, began, pod)
		return
	}
	profile.Unreserve(ctx, state, pod, node)
	if t.cache.Forget(pod.UID) {
		t.queue.Move(fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, pod, nil)
	}
	if now == bindUnneeded {
		return
	}
	t.meters.tried(resultError, profile.Name(), t.cfg.Clock.Since(began))
	t.log.Warn("binding failed; trying the pod again",
		"namespace", pod.Namespace, "pod", pod.Name, "node", node, "err", err)
	t.events.event(pod, v1.EventTypeWarning, "FailedScheduling", "Binding",
		fmt.Sprintf("binding to %s failed: %v", node, err))
	if latest, err := t.pods.Pods(pod.Namespace).Get(pod.Name); err == nil && latest.UID == pod.UID && t.waits(latest) {
		p.Info = t.podInfo(latest)
		t.queue.Retry(p)
	}
}

func (t *term) bound(profile *framework.Profile, p *queue.Pod, began time.Time, pod *v1.Pod) {
	t.cache.FinishBinding(pod.UID)
	t.meters.scheduled(p, profile.Name(), t.cfg.Clock.Since(began), t.cfg.Clock.Since(p.Added))
	t.events.event(pod, v1.EventTypeNormal, "Scheduled", "Binding",
		fmt.Sprintf("Successfully assigned %s/%s to %s", pod.Namespace, pod.Name, pod.Spec.NodeName))
}

// bindOutcome is the effect of a binding whose write returned an error.
type bindOutcome int

const (
	bindFailed   bindOutcome = iota // the pod still waits
	bindDone                        // the write took effect despite the error
	bindUnneeded                    // the pod is gone, or another writer bound it
)

// outcome asks the API server for the effect of a failed write. An answer may be lost after the
// write took effect, and then the pod's room must not be given away.
func (t *term) outcome(ctx context.Context, pod *v1.Pod, err error) bindOutcome {
	if apierrors.IsNotFound(err) {
		return bindUnneeded
	}
	now, err := t.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return bindUnneeded
	case err != nil:
		return bindFailed
	case now.UID != pod.UID:
		return bindUnneeded
	case now.Spec.NodeName == pod.Spec.NodeName:
		return bindDone
	case now.Spec.NodeName != "" || now.DeletionTimestamp != nil:
		return bindUnneeded
	default:
		return bindFailed
	}
}

// failed returns the pod to the queue and reports the reason in its status.
func (t *term) failed(
	ctx context.Context, profile *framework.Profile, state fwk.CycleState, p *queue.Pod, began time.Time, err error,
) {
	if ctx.Err() != nil {
		return
	}
	pod := p.GetPod()
	var fit *framework.FitError
	if !errors.As(err, &fit) {
		t.meters.tried(resultError, profile.Name(), t.cfg.Clock.Since(began))
		t.log.Error("cannot schedule a pod", "namespace", pod.Namespace, "pod", pod.Name, "err", err)
		t.queue.Retry(p)
		// The pod keeps its nominated node.
		t.report(ctx, pod, v1.PodReasonSchedulerError, err.Error(), t.nominees.Node(pod.UID))
		return
	}
	info := p.Info
	t.meters.tried(resultUnschedulable, profile.Name(), t.cfg.Clock.Since(began))
	t.makeRoom(ctx, profile, state, info, fit)
	t.queue.Reject(p, fit.Plugins)
	t.report(ctx, pod, v1.PodReasonUnschedulable, fit.Error(), t.nominees.Node(pod.UID))
}

// makeRoom lets the profile preempt, and nominates the node that is being freed.
func (t *term) makeRoom(
	ctx context.Context, profile *framework.Profile, state fwk.CycleState, info *framework.PodInfo,
	fit *framework.FitError,
) {
	if fit.AllNodes == 0 {
		return
	}
	t.meters.preemptions.Inc()
	nominated, status := profile.PostFilter(ctx, state, info.GetPod(), fit)
	if status.IsError() {
		t.log.Error("preemption failed", "namespace", info.GetPod().Namespace, "pod", info.GetPod().Name, "err",
			status.AsError())
	}
	fit.Preemption = status.Message()
	if nominated != nil {
		t.nominees.Set(info, nominated.NominatedNodeName)
	}
}

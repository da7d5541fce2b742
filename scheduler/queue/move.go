package queue

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

// Move handles a cluster event: pods that it may help are tried again. old and new are the objects
// before and after, nil when there is none.
func (q *Queue) Move(event fwk.ClusterEvent, old, new any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := happened{event, old, new}
	if q.flying > 0 {
		q.events = append(q.events, e)
	}
	var helped []*Pod
	for _, p := range q.unschedulable {
		if q.helps(p, e) {
			helped = append(helped, p)
		}
	}
	for _, p := range helped {
		q.wakeUp(p)
	}
}

// Wake retries a pod as if a helpful event had come. It also counts for a pod in flight.
func (q *Queue) Wake(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.pods[uid]
	if p == nil {
		return
	}
	switch p.where {
	case inFlight:
		p.woken = true
	case inUnschedulable:
		q.wakeUp(p)
	}
}

// Ungate moves a pod that PreEnqueue held back to the rejected pods, which wait for events. A pod
// that was never rejected stays gated: its gating plugin has registered the event that opens the
// gate.
func (q *Queue) Ungate(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.pods[uid]
	if p == nil || p.where != inUnschedulable || p.gate == "" || p.rejections == 0 {
		return
	}
	p.gate = ""
	if q.nextWait.IsZero() {
		q.nextWait = q.cfg.Clock.Now().Add(q.cfg.MaxUnschedulable)
	}
	q.signal()
}

// helps asks the plugins that rejected the pod whether the event changes their mind.
func (q *Queue) helps(p *Pod, e happened) bool {
	rules := q.cfg.RulesFor(p.GetPod().Spec.SchedulerName)
	if rules == nil {
		return false
	}
	if p.gate != "" {
		return q.pluginHelped(p, rules.Events()[p.gate], e)
	}
	for name := range p.rejectedBy {
		if q.pluginHelped(p, rules.Events()[name], e) {
			return true
		}
	}
	// No plugin rejected it, as in a cluster without nodes: any event may help.
	return len(p.rejectedBy) == 0
}

func (q *Queue) pluginHelped(p *Pod, registered []fwk.ClusterEventWithHint, e happened) bool {
	for _, r := range registered {
		if !matches(r.Event, e, p.GetPod()) {
			continue
		}
		if r.QueueingHintFn == nil {
			return true
		}
		// A hint that fails must not strand the pod.
		if hint, err := r.QueueingHintFn(q.cfg.Logger, p.GetPod(), e.old, e.new); err != nil || hint == fwk.Queue {
			return true
		}
	}
	return false
}

// matches reports whether a plugin that registered want receives e. "Pod" covers the three kinds of
// pod events. A target-pod event is for the pod itself only.
func matches(want fwk.ClusterEvent, e happened, pod *v1.Pod) bool {
	if want.ActionType&e.event.ActionType == 0 {
		return false
	}
	is := e.event.Resource
	if is == fwk.TargetPod || is == fwk.UnscheduledPod {
		if changed, ok := e.new.(*v1.Pod); ok && (changed.UID == pod.UID) != (is == fwk.TargetPod) {
			return false
		}
	}
	switch want.Resource {
	case fwk.WildCard, is:
		return true
	case fwk.Pod:
		return is == fwk.AssignedPod || is == fwk.UnscheduledPod || is == fwk.TargetPod
	default:
		return false
	}
}

// wakeUp moves an unschedulable pod to where it can be tried again.
func (q *Queue) wakeUp(p *Pod) {
	q.takeOut(p)
	if p.backoffUntil.After(q.cfg.Clock.Now()) {
		q.toBackoff(p)
		return
	}
	q.enqueue(p)
}

// enqueue makes a pod that is nowhere ready to be tried, unless a plugin gates it.
func (q *Queue) enqueue(p *Pod) {
	p.gate = ""
	if rules := q.cfg.RulesFor(p.GetPod().Spec.SchedulerName); rules != nil {
		if s := rules.PreEnqueue(context.Background(), p.GetPod()); !s.IsSuccess() {
			p.gate = s.Plugin()
			p.rejectedAt = q.cfg.Clock.Now()
			p.where = inUnschedulable
			q.unschedulable[p.UID()] = p
			return
		}
	}
	p.where = inActive
	q.active.add(p)
	q.signal()
}

func (q *Queue) toBackoff(p *Pod) {
	p.where = inBackoff
	q.backoff(p).add(p)
	q.signal()
}

// takeOut removes the pod from where it waits; a pod in flight waits nowhere.
func (q *Queue) takeOut(p *Pod) {
	switch p.where {
	case inActive:
		q.active.remove(p)
	case inBackoff:
		q.backoff(p).remove(p)
	case inUnschedulable:
		delete(q.unschedulable, p.UID())
	}
}

package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/barque/barque/kubelet/allocation"
	"github.com/barque/barque/kubelet/cgroups"
	"github.com/barque/barque/kubelet/cri"
	"github.com/barque/barque/kubelet/podinfo"
	"github.com/barque/barque/kubelet/pods/lifecycle"
)

// resizing is a worker's state of a resize.
type resizing struct {
	known   bool // the fields are set
	active  bool // allocated, and not in force everywhere
	failure string
	given   int64 // the generation whose resources were allocated
	pending *allocation.Pending
	asked   int64     // the generation that is pending
	retryAt time.Time // after a failure
	// group has the limits of the pod's group, once it is known to have them.
	group *cgroups.Limits
}

func (r *resizing) state() lifecycle.ResizeState {
	return lifecycle.ResizeState{Pending: r.pending, InProgress: r.active, Error: r.failure, Generation: r.given}
}

// How long to wait before a failed or deferred resize is tried again, though nothing has happened.
const (
	retryFailedResize   = 10 * time.Second
	retryDeferredResize = 3 * time.Minute
)

// noteResize takes in a decision about a resize, and records events of its changes.
func (w *worker) noteResize(pod *v1.Pod, a allocation.Answer) {
	r := &w.resizing
	if !r.known {
		r.known = true
		// An earlier process has recorded these.
		if c := podinfo.Condition(&pod.Status, v1.PodResizePending); c != nil {
			r.pending, r.asked = &allocation.Pending{Reason: c.Reason, Message: c.Message}, c.ObservedGeneration
		}
		if c := podinfo.Condition(&pod.Status, v1.PodResizeInProgress); c != nil {
			r.active = true
			if c.Reason == v1.PodReasonError {
				r.failure = c.Message
			}
		}
	}
	r.given = a.Generation
	if a.Resized {
		r.active, r.failure, r.retryAt = true, "", time.Time{}
		w.recordResize(v1.EventTypeNormal, "ResizeStarted", "Pod resize started", a.Pod, a.Generation, "")
	}
	if p := a.Pending; p != nil && (r.pending == nil || *r.pending != *p || r.asked != pod.Generation) {
		reason := "ResizeDeferred"
		if p.Reason == v1.PodReasonInfeasible {
			reason = "ResizeInfeasible"
		}
		w.recordResize(v1.EventTypeWarning, reason, "Pod resize "+p.Reason, pod, pod.Generation, p.Message)
	}
	r.pending, r.asked = a.Pending, pod.Generation
}

// followResize notes whether an allocation is in force everywhere. It returns true when
// that is new.
func (w *worker) followResize(f lifecycle.Facts, p lifecycle.Plan) (completed bool) {
	r := &w.resizing
	if w.unfinished(f, p) {
		r.active = true
		return false
	}
	if completed = r.active; completed {
		r.active, r.failure = false, ""
		w.recordResize(v1.EventTypeNormal, "ResizeCompleted", "Pod resize completed", f.Pod, r.given, "")
	}
	return completed
}

// unfinished reports whether a container, or the pod's group, does not have its allocation yet.
func (w *worker) unfinished(f lifecycle.Facts, p lifecycle.Plan) bool {
	if len(p.Update) > 0 || w.regroups(f.Pod) {
		return true
	}
	for _, k := range p.Kill {
		if k.Resize {
			return true
		}
	}
	return w.resizing.active && w.replacing()
}

// retryResize has a pending resize tried again.
func (w *worker) retryResize(p *lifecycle.Plan) {
	if r := &w.resizing; r.pending != nil && r.pending.Reason == v1.PodReasonDeferred {
		p.WakeBy(w.m.Now().Add(retryDeferredResize))
	} else if r.failure != "" {
		p.WakeBy(r.retryAt)
	}
}

func (w *worker) noteGroup(pod *v1.Pod) {
	limits := cgroups.LimitsOf(pod)
	w.resizing.group = &limits
}

// regroups reports whether the pod's group is known to have other limits than the pod.
func (w *worker) regroups(pod *v1.Pod) bool {
	return w.resizing.group != nil && *w.resizing.group != cgroups.LimitsOf(pod)
}

// resize carries an allocation out. The pod grows before its containers, and shrinks after them. It
// reports whether anything changed.
func (w *worker) resize(ctx context.Context, f lifecycle.Facts, p lifecycle.Plan) bool {
	r := &w.resizing
	group := w.regroups(f.Pod)
	if len(p.Update) == 0 && !group || w.m.Now().Before(r.retryAt) {
		return false
	}
	changed, err := w.tryResize(ctx, f, p, group)
	if err == nil {
		r.failure, r.retryAt = "", time.Time{}
		return changed
	}
	r.retryAt = w.m.Now().Add(retryFailedResize)
	w.retryAt = r.retryAt
	if message := cri.Message(err); message != r.failure {
		r.failure = message
		w.recordResize(v1.EventTypeWarning, "ResizeError", "Pod resize error", f.Pod, r.given, message)
		w.poke() // it is in the status, too
	}
	return false
}

// tryResize does it once. A pod with a container that restarts for the resize shrinks afterwards.
func (w *worker) tryResize(
	ctx context.Context, f lifecycle.Facts, p lifecycle.Plan, group bool,
) (changed bool, err error) {
	shrink := group && !w.replacing()
	if err := w.checkUsage(ctx, f, p, shrink); err != nil {
		return false, err
	}
	if group {
		if err := w.m.Cgroups.Widen(f.Pod); err != nil {
			return false, err
		}
	}
	for _, u := range p.Update {
		is := w.instance(u.ID)
		is.updated = nil // after a failure, the container's limits are unknown
		if err := w.m.Runtime.UpdateContainerResources(ctx, u.ID, u.Limits.Resources()); err != nil {
			return changed, fmt.Errorf("update the resources of container %q: %s", u.Name, cri.Message(err))
		}
		is.updated, changed = &u.Limits, true
	}
	if shrink {
		if err := w.m.Cgroups.Ensure(f.Pod); err != nil {
			return changed, err
		}
		w.noteGroup(f.Pod)
		changed = true
	}
	return changed, nil
}

// checkUsage refuses to lower a limit of memory below the present use: the kernel would kill.
func (w *worker) checkUsage(ctx context.Context, f lifecycle.Facts, p lifecycle.Plan, shrink bool) error {
	var errs []error
	if limits := cgroups.LimitsOf(f.Pod); shrink && limits.Memory > 0 &&
		(w.resizing.group.Memory == 0 || limits.Memory < w.resizing.group.Memory) {
		used, err := w.m.Cgroups.MemoryUsage(f.Pod)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("cannot tell how much memory the pod uses: %w", err))
		case used > limits.Memory:
			errs = append(errs,
				fmt.Errorf("attempting to set pod memory limit (%d) below current usage (%d)", limits.Memory, used))
		}
	}
	lower := map[string]lifecycle.Update{}
	for _, u := range p.Update {
		if u.Lower {
			lower[u.ID] = u
		}
	}
	if len(lower) > 0 {
		stats, err := w.m.Runtime.ListContainerStats(ctx, map[string]string{cri.LabelPodUID: string(w.uid)})
		if err != nil {
			errs = append(errs, fmt.Errorf("cannot tell how much memory the containers use: %s", cri.Message(err)))
		}
		for _, s := range stats {
			u, ok := lower[s.GetAttributes().GetId()]
			if used := s.GetMemory().GetUsageBytes().GetValue(); ok && int64(used) > u.Limits.Memory {
				errs = append(errs,
					fmt.Errorf("attempting to set container %q memory limit (%d) below current usage (%d)", u.Name,
						u.Limits.Memory, used))
			}
		}
	}
	if err := utilerrors.NewAggregate(errs); err != nil {
		return fmt.Errorf("cannot decrease memory limits: %w", err)
	}
	return nil
}

// recordResize records an event whose text names the resources of all containers.
func (w *worker) recordResize(kind, reason, text string, pod *v1.Pod, generation int64, failure string) {
	type container struct {
		Name      string                  `json:"name"`
		Resources v1.ResourceRequirements `json:"resources"`
	}
	summary := struct {
		Resources      *v1.ResourceRequirements `json:"resources,omitempty"`
		InitContainers []container              `json:"initContainers,omitempty"`
		Containers     []container              `json:"containers,omitempty"`
		Generation     int64                    `json:"generation"`
		Error          string                   `json:"error,omitempty"`
	}{Resources: pod.Spec.Resources, Generation: generation, Error: failure}
	for i := range pod.Spec.InitContainers {
		summary.InitContainers = append(summary.InitContainers,
			container{pod.Spec.InitContainers[i].Name, pod.Spec.InitContainers[i].Resources})
	}
	for i := range pod.Spec.Containers {
		summary.Containers = append(summary.Containers,
			container{pod.Spec.Containers[i].Name, pod.Spec.Containers[i].Resources})
	}
	if raw, err := json.Marshal(summary); err == nil {
		text += ": " + string(raw)
	}
	w.m.Events.Event(pod, nil, kind, reason, text)
}

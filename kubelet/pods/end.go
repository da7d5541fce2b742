package pods

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/barque/barque/kubelet/podinfo"
	"github.com/barque/barque/kubelet/pods/lifecycle"
)

// terminate ends the living parts of the pod, in order.
func (w *worker) terminate(ctx context.Context, f lifecycle.Facts) time.Time {
	w.hurry(f.Pod)
	plan := lifecycle.DecideEnd(f)
	if plan.Ended {
		// Before the end is reported: from then on another pod may get the devices.
		if err := w.unprepare(ctx); err != nil {
			w.m.Logger.Warn("cannot take back a pod's devices; trying again", "pod", f.Pod.Namespace+"/"+f.Pod.Name,
				"err", err)
			return w.m.Now().Add(retryCleanUp)
		}
		w.m.Allocator.Release(w.uid)
	}
	if !w.mute {
		w.setStatus(w.compute(f, plan, true))
	}
	if plan.Ended {
		w.phase = phaseTerminated
		w.m.Probes.Forget(w.uid)
		if w.m.Network != nil {
			w.m.Network.Detach(f.Pod)
		}
		return w.m.Now()
	}
	if w.act(ctx, f, plan) {
		return w.m.Now()
	}
	return plan.WakeAt
}

// retryCleanUp is the pause between tries to remove the remains.
const retryCleanUp = 2 * time.Second

// cleanUp removes the remains of an ended pod. Its containers stay, for their logs, until the API
// server deletes the pod; then they go too, and once nothing is left the pod's object may go.
func (w *worker) cleanUp(ctx context.Context, f lifecycle.Facts, gone bool) (next time.Time, done bool) {
	pod := f.Pod
	fail := func(err error) (time.Time, bool) {
		w.m.Logger.Warn("cannot clean up after a pod; trying again", "pod", pod.Namespace+"/"+pod.Name, "err", err)
		return w.m.Now().Add(retryCleanUp), false
	}
	if plan := lifecycle.DecideEnd(f); !plan.Ended {
		w.act(ctx, f, plan) // something came to life late
		return w.m.Now().Add(retryCleanUp), false
	}
	if !w.cleaned.Load() {
		if err := w.unprepare(ctx); err != nil { // a container that came to life late may have had them
			return fail(err)
		}
		if err := w.m.Volumes.Unmount(w.uid); err != nil {
			fail(err)
			return w.m.Now().Add(w.mounts.unmounting.Failed(retryCleanUp, longest(retryCleanUp, err))), false
		}
		if err := w.m.Cgroups.Remove(w.uid); err != nil {
			return fail(err)
		}
		w.cleaned.Store(true)
	}
	if !gone && pod.DeletionTimestamp == nil {
		return time.Time{}, false
	}
	if !w.removed || len(f.Observed.Sandboxes) > 0 {
		for _, box := range f.Observed.Sandboxes {
			if err := w.m.Runtime.RemovePodSandbox(ctx, box.ID); err != nil {
				return fail(err)
			}
		}
		if err := w.m.Cgroups.Remove(w.uid); err != nil {
			return fail(err)
		}
		if err := w.m.Logs.Remove(pod); err != nil {
			return fail(err)
		}
		w.removed = true
	}
	if gone {
		w.m.Status.Forget(w.uid)
		return time.Time{}, true
	}
	w.m.Status.Finish(pod)
	return time.Time{}, false
}

func (w *worker) unprepare(ctx context.Context) error {
	if w.m.Devices == nil {
		return nil
	}
	return w.m.Devices.Unprepare(ctx, w.uid)
}

// leastGrace is the shortest grace period of a container.
const leastGrace = 2 * time.Second

// graceFor returns the grace period of a container.
func (w *worker) graceFor(pod *v1.Pod, k lifecycle.Kill) time.Duration {
	seconds := podinfo.GracePeriod(pod)
	if w.phase != phaseSyncing && pod.DeletionGracePeriodSeconds != nil {
		seconds = *pod.DeletionGracePeriodSeconds
	}
	if e := w.eviction(); e != nil {
		seconds = min(seconds, int64(e.Grace/time.Second))
	}
	if limit := w.limit(); limit != nil && w.phase != phaseSyncing {
		seconds = min(seconds, int64(*limit/time.Second))
	}
	if w.phase == phaseSyncing && k.Trouble != "" {
		for _, c := range podinfo.Containers(pod) {
			if c.Name != k.Name {
				continue
			}
			var probe *v1.Probe // none for a failed hook
			switch k.Trouble {
			case "liveness":
				probe = c.LivenessProbe
			case "startup":
				probe = c.StartupProbe
			}
			if probe != nil && probe.TerminationGracePeriodSeconds != nil {
				seconds = *probe.TerminationGracePeriodSeconds
			}
		}
	}
	return max(time.Duration(seconds)*time.Second, leastGrace)
}

// hurry stops waiting for containers whose remaining time is longer than the pod's
// present grace period.
func (w *worker) hurry(pod *v1.Pod) {
	most := w.m.Now().Add(w.graceFor(pod, lifecycle.Kill{}))
	for _, is := range w.instances {
		if k := is.killing; k != nil && k.until.After(most) {
			k.cancel(errEnding)
			is.killing = nil
		}
	}
}

// kill stops a container in the background: its preStop hook first, then the runtime's stop, both
// within the grace period.
func (w *worker) kill(ctx context.Context, pod *v1.Pod, k lifecycle.Kill) {
	grace, least := w.graceFor(pod, k), leastGrace
	if k.Now {
		grace, least = 0, 0
	}
	ctx, cancel := context.WithCancelCause(ctx)
	own := &killing{until: w.m.Now().Add(grace), cancel: cancel}
	is := w.instance(k.ID)
	is.killing = own
	if k.Replace {
		w.named(k.Name).Replacing = true
	}
	var spec *v1.Container
	for _, c := range podinfo.Containers(pod) {
		if c.Name == k.Name {
			spec = c
		}
	}
	w.m.Events.Event(pod, orNamed(spec, k.Name), v1.EventTypeNormal, "Killing", k.Reason)
	hook := !k.Now && !is.stopHook && spec != nil && spec.Lifecycle != nil && spec.Lifecycle.PreStop != nil
	is.stopHook = true
	ip := ""
	if len(pod.Status.PodIPs) > 0 {
		ip = pod.Status.PodIPs[0].IP
	}
	w.m.workers.Go(func() { // ends when the container has ended, or with ctx
		began := w.m.Now()
		if hook {
			w.preStop(ctx, pod, spec, k.ID, ip, grace)
		}
		left := max(grace-w.m.Now().Sub(began), least)
		err := w.m.Runtime.StopContainer(ctx, k.ID, left)
		w.finish(func() {
			if is.killing == own {
				is.killing = nil
			}
			if err != nil && ctx.Err() == nil {
				w.try(pod, "stop a container", err)
			}
			cancel(nil)
		})
	})
}

func orNamed(c *v1.Container, name string) *v1.Container {
	if c != nil {
		return c
	}
	return &v1.Container{Name: name}
}

func (w *worker) preStop(ctx context.Context, pod *v1.Pod, c *v1.Container, id, ip string, grace time.Duration) {
	ctx, cancel := context.WithTimeoutCause(ctx, grace,
		fmt.Errorf("the hook took longer than the grace period of %s", grace))
	defer cancel()
	if err := w.hook(ctx, c, id, ip, c.Lifecycle.PreStop); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		w.m.Events.Event(pod, c, v1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed: "+err.Error())
	}
}

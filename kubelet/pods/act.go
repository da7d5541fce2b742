package pods

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/barque/barque/kubelet/admission"
	"github.com/barque/barque/kubelet/cri"
	"github.com/barque/barque/kubelet/images"
	"github.com/barque/barque/kubelet/pods/lifecycle"
	"github.com/barque/barque/kubelet/pods/runtimeconfig"
	"github.com/barque/barque/kubelet/starts"
)

// Reasons of a container that could not be created.
const (
	reasonConfigError = "CreateContainerConfigError"
	reasonCreateError = "CreateContainerError"
	reasonRunError    = "RunContainerError"
)

const eventSandboxFailed = "FailedCreatePodSandBox"

// Pauses before something that failed is tried again.
const (
	retryConfig     = 3 * time.Second
	retryCreate     = 10 * time.Second
	runErrorShown   = 2 * time.Second // then its back-off shows
	firstBoxRetry   = time.Second
	longestBoxRetry = 30 * time.Second
)

// act carries a plan out and reports whether a change needs another look at once. It starts slow
// steps in the background.
func (w *worker) act(ctx context.Context, f lifecycle.Facts, p lifecycle.Plan) (changed bool) {
	for _, k := range p.Kill {
		w.kill(ctx, f.Pod, k)
	}
	changed = w.resize(ctx, f, p)
	for _, id := range p.RemoveContainers {
		if w.try(f.Pod, "remove a container", w.m.removeContainer(ctx, id)) {
			delete(w.instances, id)
			changed = true
		}
		w.state.Forget(id)
	}
	if p.CreateSandbox {
		end, ok := w.begin(f.Pod, false)
		if !ok {
			// It is woken when it is its turn. Its dead sandbox is stopped then: each stop calls
			// the network plugins.
			return changed
		}
		defer end()
	}
	for _, id := range p.StopSandboxes {
		changed = w.try(f.Pod, "stop a sandbox", w.m.Runtime.StopPodSandbox(ctx, id)) || changed
	}
	for _, id := range p.RemoveSandboxes {
		w.try(f.Pod, "remove a sandbox", w.m.Runtime.RemovePodSandbox(ctx, id))
	}
	if p.CreateSandbox {
		w.createSandbox(f.Pod, p.SandboxAttempt)
		return true
	}
	for _, c := range p.Pull {
		w.pull(f.Pod, c)
	}
	if len(p.Start) == 0 {
		return changed
	}
	end, ok := w.begin(f.Pod, true)
	if !ok {
		return changed
	}
	defer end()
	for _, s := range p.Start {
		w.start(f, s)
		changed = true
		if w.hasPostStart(s.Container) {
			break // the next ones wait for its hook
		}
	}
	return changed
}

// begin begins a start of the pod if it is its turn. begun means that the pod has a sandbox.
func (w *worker) begin(pod *v1.Pod, begun bool) (end func(), ok bool) {
	if w.m.Starts == nil {
		return func() {}, true
	}
	return w.m.Starts.Begin(starts.Start{Pod: w.uid, Critical: admission.IsCritical(pod), Begun: begun, Wake: w.poke})
}

// try logs a failure; the next look at the pod tries again.
func (w *worker) try(pod *v1.Pod, what string, err error) bool {
	if err != nil {
		w.m.Logger.Warn("a step of a pod failed; trying again", "pod", pod.Namespace+"/"+pod.Name, "step", what,
			"err", err)
		w.retryAt = w.m.Now().Add(retryRuntime)
	}
	return err == nil
}

func (w *worker) createSandbox(pod *v1.Pod, attempt uint32) {
	for _, is := range w.names {
		is.Replacing = false // the whole pod is replaced, and the status shows that
	}
	err := w.trySandbox(pod, attempt)
	if err == nil {
		w.boxTrouble = nil
		w.boxFailures.Over()
		return
	}
	if w.syncCtx.Err() != nil {
		return
	}
	now := w.m.Now()
	w.boxTrouble = &lifecycle.Trouble{Reason: eventSandboxFailed, Message: cri.Message(err), Since: now,
		RetryAt: now.Add(w.boxFailures.Failed(firstBoxRetry, longestBoxRetry))}
	w.m.Events.Event(pod, nil, v1.EventTypeWarning, eventSandboxFailed,
		"Failed to create pod sandbox: "+cri.Message(err))
}

func (w *worker) trySandbox(pod *v1.Pod, attempt uint32) error {
	if err := w.m.Cgroups.Ensure(pod); err != nil {
		return err
	}
	config, err := w.m.Configs.Sandbox(pod, attempt)
	if err != nil {
		return err
	}
	for _, warning := range w.m.Configs.DNSWarnings(pod) {
		w.m.Events.Event(pod, nil, v1.EventTypeWarning, warning.Reason, warning.Message)
	}
	if err := w.m.Logs.Make(pod); err != nil {
		return err
	}
	w.noteGroup(pod)
	_, err = w.m.Runtime.RunPodSandbox(w.m.making, config, "")
	return err
}

// pull gets a container's image in the background.
func (w *worker) pull(pod *v1.Pod, c *v1.Container) {
	is := w.named(c.Name)
	is.Pulling = true
	ctx := w.syncCtx
	w.m.workers.Go(func() { // ends with the pull, which ends with ctx
		config, err := w.m.Configs.Sandbox(pod, 0)
		ref := ""
		if err == nil {
			ref, err = w.m.Puller.Ensure(ctx, pod, c, config)
		}
		w.finish(func() {
			is.Pulling = false
			switch {
			case ctx.Err() != nil:
			case is.image != "" && is.image != c.Image: // it was changed meanwhile
			case err != nil:
				reason := lifecycle.ReasonErrImagePull
				var failure *images.Error
				if errors.As(err, &failure) {
					reason = failure.Reason
				}
				w.inTrouble(c, reason, err.Error(), 0)
				w.m.Events.Event(pod, c, v1.EventTypeWarning, "Failed", "Error: "+reason)
			default:
				is.Image = ref
				is.failures.Over()
			}
		})
	})
}

// inTrouble records why a container cannot be started. Without a fixed delay the pauses grow.
func (w *worker) inTrouble(c *v1.Container, reason, message string, delay time.Duration) {
	is := w.named(c.Name)
	is.Replacing = false
	if delay == 0 {
		delay = is.failures.Failed(lifecycle.FirstRestart, lifecycle.LongestRestart)
	}
	now := w.m.Now()
	is.Trouble = &lifecycle.Trouble{Reason: reason, Message: message, Since: now, RetryAt: now.Add(delay)}
}

// start makes and starts a container.
func (w *worker) start(f lifecycle.Facts, s lifecycle.Start) {
	c := s.Container
	is := w.named(c.Name)
	is.Image = "" // the next start asks for the image again, as its pull policy wants
	box := f.Observed.Sandbox()
	if s.Restart {
		ended := f.Observed.Newest(c.Name)
		is.Restarts.Again(ended.FinishedAt, f.Now)
	}
	id, reason, err := w.tryStart(f, s, box)
	if err != nil {
		if w.syncCtx.Err() != nil {
			return
		}
		delay := retryCreate
		switch reason {
		case reasonConfigError:
			delay = retryConfig
		case reasonRunError:
			delay = runErrorShown
		}
		w.m.Events.Event(f.Pod, c, v1.EventTypeWarning, "Failed", "Error: "+cri.Message(err))
		w.inTrouble(c, reason, cri.Message(err), delay)
		return
	}
	is.Trouble, is.Replacing = nil, false
	is.failures.Over()
	if w.hasPostStart(c) {
		w.postStart(f.Pod, c, id, box)
	}
}

func (w *worker) tryStart(f lifecycle.Facts, s lifecycle.Start, box *lifecycle.Sandbox) (id, reason string, err error) {
	pod, c := f.Pod, s.Container
	if err := w.attach(pod, box); err != nil {
		return "", reasonCreateError, err
	}
	image, err := w.m.Images.ImageStatus(w.syncCtx, s.ImageRef)
	if err != nil {
		return "", images.ReasonInspect, err
	}
	config, err := w.m.Configs.Container(w.syncCtx, pod, runtimeconfig.Input{
		Start: s, IPs: lifecycle.IPs(pod, &f.Observed, w.m.HostIPs), Paths: w.mounts.paths, Image: image,
		Target: w.target(f, c)})
	if err != nil {
		var bad *runtimeconfig.ConfigError
		if errors.As(err, &bad) {
			return "", reasonConfigError, err
		}
		return "", reasonCreateError, err
	}
	sandbox, err := w.m.Configs.Sandbox(pod, box.Attempt)
	if err != nil {
		return "", reasonConfigError, err
	}
	id, err = w.m.Runtime.CreateContainer(w.m.making, box.ID, config, sandbox)
	if err != nil {
		return "", reasonCreateError, err
	}
	w.m.Events.Event(pod, c, v1.EventTypeNormal, "Created", "Container created")
	if w.syncCtx.Err() != nil {
		return "", reasonRunError, context.Cause(w.syncCtx)
	}
	if err := w.m.Runtime.StartContainer(w.m.making, id); err != nil {
		return "", reasonRunError, err
	}
	w.m.Events.Event(pod, c, v1.EventTypeNormal, "Started", "Container started")
	if err := w.m.Logs.Link(pod, c.Name, id, s.Attempt); err != nil {
		w.m.Logger.Warn("cannot make the link to a container's log by which collectors find it", "pod",
			pod.Namespace+"/"+pod.Name, "container", c.Name, "err", err)
	}
	return id, "", nil
}

// attach waits until the pod's network rules are in force, once for each sandbox.
func (w *worker) attach(pod *v1.Pod, box *lifecycle.Sandbox) error {
	if w.m.Network == nil || pod.Spec.HostNetwork || w.attached == box.ID {
		return nil
	}
	if err := w.m.Network.Attach(w.syncCtx, pod, box.IPs); err != nil {
		return err
	}
	w.attached = box.ID
	return nil
}

// target returns the container whose processes an ephemeral container shall see.
func (w *worker) target(f lifecycle.Facts, c *v1.Container) string {
	for i := range f.Pod.Spec.EphemeralContainers {
		e := &f.Pod.Spec.EphemeralContainers[i]
		if e.Name != c.Name || e.TargetContainerName == "" {
			continue
		}
		if t := f.Observed.Newest(e.TargetContainerName); t != nil {
			return t.ID
		}
	}
	return ""
}

func (w *worker) hasPostStart(c *v1.Container) bool {
	return c.Lifecycle != nil && c.Lifecycle.PostStart != nil
}

// postStart runs a container's hook in the background. A hook that fails ends the container.
func (w *worker) postStart(pod *v1.Pod, c *v1.Container, id string, box *lifecycle.Sandbox) {
	is := w.instance(id)
	is.hook = true
	ctx := w.syncCtx
	ip := w.addressFor(pod, box)
	w.m.workers.Go(func() { // ends with the hook, which ends with ctx
		err := w.hook(ctx, c, id, ip, c.Lifecycle.PostStart)
		w.finish(func() {
			is.hook = false
			if err != nil && ctx.Err() == nil {
				w.m.Events.Event(pod, c, v1.EventTypeWarning, "FailedPostStartHook",
					"PostStartHook failed: "+err.Error())
				is.hookFailed = true
			}
		})
	})
}

func (w *worker) addressFor(pod *v1.Pod, box *lifecycle.Sandbox) string {
	ips := w.m.HostIPs
	if !pod.Spec.HostNetwork {
		ips = nil
		if box != nil {
			ips = box.IPs
		}
	}
	if len(ips) == 0 {
		return ""
	}
	return ips[0]
}

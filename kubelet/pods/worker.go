package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/kubelet/cgroups"
	"github.com/barque/barque/kubelet/cri"
	"github.com/barque/barque/kubelet/podinfo"
	"github.com/barque/barque/kubelet/pods/lifecycle"
	"github.com/barque/barque/kubelet/pods/runtimestate"
	"github.com/barque/barque/kubelet/probes"
	"github.com/barque/barque/kubelet/volumes"
)

// phaseOfWork is how far a pod's life on this node is.
//
//	       bound                 deleted, finished, failed
//	───▶ syncing ──────────────────────────▶ terminating
//	                                              │ nothing of it runs
//	   forgotten by the API server                ▼
//	◀────────────────────────────────────── terminated
//	    and removed from the runtime
//
// There is no way back: a pod that has begun to end ends, whatever changes afterwards.
type phaseOfWork int

const (
	phaseSyncing phaseOfWork = iota
	phaseTerminating
	phaseTerminated
)

// retryRuntime is how long to wait for a runtime that does not answer.
const retryRuntime = time.Second

// worker owns one pod. Its goroutine alone touches the fields below the line.
type worker struct {
	m        *Manager
	uid      types.UID
	wake     chan struct{} // of capacity 1: wake-ups merge
	launched bool          // guarded by the manager's lock
	state    *runtimestate.Reader

	mu        sync.Mutex
	pod       *v1.Pod                 // as the API server has it
	status    *v1.PodStatus           // as last set
	gone      bool                    // the API server has it no longer
	interrupt context.CancelCauseFunc // ends syncCtx; set before the first step
	retry     bool                    // missing parts of a container's configuration may be there now
	results   []func()                // of background steps, to be run by the goroutine
	evicted   *Eviction               // the reason of the node's eviction
	bound     *time.Duration          // of its grace period

	// ---- the goroutine's own
	phase       phaseOfWork
	failed      failure
	names       map[string]*named    // by container name
	instances   map[string]*instance // by container ID
	mounts      mounts
	devices     devices
	boxTrouble  *lifecycle.Trouble // see lifecycle.Facts
	boxFailures lifecycle.Backoff
	resizing    resizing
	mute        bool            // the status is not to be written any more
	retryAt     time.Time       // when to look again because something failed
	syncCtx     context.Context // ends when the pod is to be ended
	attached    string          // the sandbox that the network knows
	cleaned     atomic.Bool     // its resources are removed from the node; others may read it
	removed     bool
}

// failure is the reason for which the kubelet itself ends a pod.
type failure struct {
	reason, message string
	refused         bool // the node has not taken the pod
}

// mounts is a worker's state of the pod's volumes.
type mounts struct {
	paths      map[string]string // on the host, by volume
	images     map[string]string // see lifecycle.StatusInput
	imageIDs   map[string]string // by volume, once all of images are known
	failures   lifecycle.Backoff
	unmounting lifecycle.Backoff
}

// devices is a worker's state of the pod's devices.
type devices struct {
	prepared bool // they are, or were
	failures lifecycle.Backoff
}

func newWorker(m *Manager, uid types.UID) *worker {
	return &worker{m: m, uid: uid, wake: make(chan struct{}, 1),
		state: runtimestate.NewReader(m.Runtime, uid, m.HostIPs),
		names: map[string]*named{}, instances: map[string]*instance{}}
}

func (w *worker) poke() {
	select {
	case w.wake <- struct{}{}:
	default: // a wake-up is already waiting
	}
}

// update takes the API server's state of the pod. The newest one counts.
func (w *worker) update(pod *v1.Pod, gone bool) {
	w.mu.Lock()
	w.pod, w.gone = pod, w.gone || gone
	if w.interrupt != nil && (w.gone || pod.DeletionTimestamp != nil) {
		w.interrupt(errEnding) // pulls, mounts and hooks; creating calls to the runtime go on
	}
	w.mu.Unlock()
	w.poke()
}

// evict has the pod ended. It is false when the pod is being ended already.
func (w *worker) evict(why Eviction) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.evicted != nil || w.gone || w.pod == nil || w.pod.DeletionTimestamp != nil ||
		podinfo.Finished(w.pod.Status.Phase) ||
		w.status != nil && podinfo.Finished(w.status.Phase) {
		return false
	}
	w.evicted = &why
	if w.interrupt != nil {
		w.interrupt(errEnding)
	}
	w.poke()
	return true
}

// hasten bounds the pod's grace period.
func (w *worker) hasten(grace time.Duration) {
	w.mu.Lock()
	if w.bound == nil || grace < *w.bound {
		w.bound = &grace
	}
	w.mu.Unlock()
	w.poke()
}

// limit returns the bound of the pod's grace period, or nil.
func (w *worker) limit() *time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bound
}

// active returns the pod if it is not being ended.
func (w *worker) active() *v1.Pod {
	w.mu.Lock()
	ending := w.evicted != nil || w.gone || w.pod == nil || w.pod.DeletionTimestamp != nil
	w.mu.Unlock()
	if ending {
		return nil
	}
	if pod, _ := w.desired(); !podinfo.Finished(pod.Status.Phase) {
		return pod
	}
	return nil
}

// eviction returns the node's eviction of the pod, or nil.
func (w *worker) eviction() *Eviction {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.evicted
}

// finish runs fn on the worker's goroutine soon. Background steps report by it.
func (w *worker) finish(fn func()) {
	w.mu.Lock()
	w.results = append(w.results, fn)
	w.mu.Unlock()
	w.poke()
}

// desired returns the pod with its last status, which may be newer than the API server's, and
// whether the API server has forgotten it.
func (w *worker) desired() (*v1.Pod, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.status == nil {
		return w.pod, w.gone
	}
	pod := *w.pod
	others, phase := pod.Status.Conditions, pod.Status.Phase
	pod.Status = *w.status.DeepCopy()
	if podinfo.Finished(phase) {
		pod.Status.Phase = phase // another writer ended it
	}
	for _, c := range others {
		if !podinfo.NodeDecides(c.Type) {
			setForeign(&pod.Status, c)
		}
	}
	return &pod, w.gone
}

func (w *worker) latest() *v1.Pod {
	pod, gone := w.desired()
	if gone {
		return nil
	}
	return pod
}

func setForeign(s *v1.PodStatus, c v1.PodCondition) {
	if have := podinfo.Condition(s, c.Type); have != nil {
		*have = c
		return
	}
	s.Conditions = append(s.Conditions, c)
}

// run manages the pod until ctx ends or the pod is gone for good; then it returns true.
func (w *worker) run(ctx context.Context) bool {
	syncCtx, interrupt := context.WithCancelCause(ctx)
	defer interrupt(errStopping)
	w.syncCtx = syncCtx
	w.mu.Lock()
	w.interrupt = interrupt
	if w.pod != nil && (w.gone || w.pod.DeletionTimestamp != nil) {
		interrupt(errEnding)
	}
	w.mu.Unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-w.wake:
		case <-timer.C:
		}
		w.mu.Lock()
		results, retry := w.results, w.retry
		w.results, w.retry = nil, false
		w.mu.Unlock()
		if retry {
			for _, is := range w.names {
				if is.Trouble != nil && is.Trouble.Reason == reasonConfigError {
					is.Trouble = nil
				}
			}
		}
		for _, take := range results {
			take()
		}
		began := w.m.Now()
		next, done := w.step(ctx)
		if w.m.Meter != nil {
			w.m.Meter.Stepped(w.phase != phaseSyncing, w.m.Now().Sub(began))
		}
		if done {
			return true
		}
		if r := w.retryAt; !r.IsZero() && (next.IsZero() || r.Before(next)) {
			next = r
		}
		w.retryAt = time.Time{}
		if !next.IsZero() {
			timer.Reset(max(next.Sub(w.m.Now()), 0))
		} else {
			timer.Stop()
		}
	}
}

// step looks, decides and acts once. It returns when to look again though nothing happened, and
// whether the pod is gone for good.
func (w *worker) step(ctx context.Context) (next time.Time, done bool) {
	pod, gone := w.desired()
	observed, err := w.state.Read(ctx)
	if err != nil {
		if ctx.Err() == nil && !cri.IsUnavailable(err) {
			w.m.Logger.Warn("cannot look at a pod; trying again", "pod", pod.Namespace+"/"+pod.Name, "err", err)
		}
		return w.m.Now().Add(retryRuntime), false
	}
	facts := w.facts(w.m.Allocator.Get(pod), observed)
	if w.phase == phaseSyncing && !w.mustEnd(facts, gone) {
		if !w.allot(pod, &facts) {
			return time.Time{}, false // another look comes when all pods of the node are known
		}
	}
	if w.phase == phaseSyncing && w.mustEnd(facts, gone) {
		w.phase = phaseTerminating
		// No status is written for a pod that was over before this process began, or that the API
		// server no longer has: clients know more than can be found here.
		w.mute = len(pod.Spec.Containers) == 0 || (w.status == nil && podinfo.Finished(pod.Status.Phase))
	}
	if w.phase != phaseSyncing {
		w.interrupt(errEnding)
		if w.m.Starts != nil {
			w.m.Starts.Forget(w.uid)
		}
	}
	switch w.phase {
	case phaseSyncing:
		return w.sync(ctx, facts), false
	case phaseTerminating:
		return w.terminate(ctx, facts), false
	default:
		return w.cleanUp(ctx, facts, gone)
	}
}

// allot requests the pod's allocation, and puts it into the facts. It is false while other pods are
// unknown. A pod that the node does not admit must be ended.
func (w *worker) allot(pod *v1.Pod, f *lifecycle.Facts) bool {
	answer := w.m.Allocator.Answer(pod, len(f.Observed.Sandboxes) > 0)
	if answer.Waiting {
		return false
	}
	if r := answer.Refused; r != nil {
		w.refuse(pod, r.Reason, r.Message)
		return true
	}
	f.Pod = answer.Pod
	w.noteResize(pod, answer)
	f.Resized = answer.EverResized
	return true
}

// refuse fails a pod of which nothing has run.
func (w *worker) refuse(pod *v1.Pod, reason, message string) {
	w.m.Logger.Info("the node does not take a pod", "pod", pod.Namespace+"/"+pod.Name, "reason", reason, "message",
		message)
	w.failed = failure{reason: reason, message: "Pod was rejected: " + message, refused: true}
	w.m.Events.Event(pod, nil, v1.EventTypeWarning, reason, message)
}

// mustEnd reports whether the pod must be ended now.
func (w *worker) mustEnd(f lifecycle.Facts, gone bool) bool {
	pod := f.Pod
	if gone || pod.DeletionTimestamp != nil || podinfo.Finished(pod.Status.Phase) || w.failed.reason != "" {
		return true
	}
	if e := w.eviction(); e != nil {
		w.failed.reason, w.failed.message = e.Reason, e.Message
		if !e.Quiet {
			w.m.Events.Event(pod, nil, v1.EventTypeWarning, e.Reason, e.Message)
		}
		return true
	}
	limit := pod.Spec.ActiveDeadlineSeconds
	if limit == nil || pod.Status.StartTime == nil {
		return false
	}
	if f.Now.Before(pod.Status.StartTime.Add(time.Duration(*limit) * time.Second)) {
		return false
	}
	w.failed.reason = "DeadlineExceeded"
	w.failed.message = "Pod was active on the node longer than the specified deadline"
	w.m.Events.Event(pod, nil, v1.EventTypeNormal, w.failed.reason, w.failed.message)
	return true
}

func (w *worker) facts(pod *v1.Pod, observed lifecycle.Observed) lifecycle.Facts {
	w.renew(pod)
	w.probe(pod, &observed)
	names, instances := w.known(&observed)
	return lifecycle.Facts{Pod: pod, Observed: observed, Now: w.m.Now(), Named: names, Instances: instances,
		SandboxTrouble: w.boxTrouble}
}

// renew forgets the failures and back-offs of containers whose image was changed.
func (w *worker) renew(pod *v1.Pod) {
	for _, c := range podinfo.Containers(pod) {
		is := w.named(c.Name)
		if is.image != "" && is.image != c.Image {
			is.Image, is.Trouble, is.Restarts = "", nil, lifecycle.Restarts{}
			is.failures.Over()
		}
		is.image = c.Image
	}
}

// probe has exactly the running containers of the pod probed, without those that are being stopped:
// their failures would mean nothing.
func (w *worker) probe(pod *v1.Pod, o *lifecycle.Observed) {
	var targets []probes.Target
	for _, spec := range podinfo.Containers(pod) {
		c := o.Newest(spec.Name)
		if c == nil || c.State != lifecycle.Running || (w.phase == phaseSyncing && w.instance(c.ID).killing != nil) {
			continue
		}
		t := probes.Target{ID: c.ID, Container: spec, StartedAt: c.StartedAt}
		if ips := lifecycle.IPs(pod, o, w.m.HostIPs); len(ips) > 0 {
			t.PodIP = ips[0]
		}
		for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
			for i := range list {
				if s := &list[i]; s.Name == spec.Name && s.ContainerID == w.m.RuntimeName+"://"+c.ID {
					t.WasStarted, t.WasReady = s.Started != nil && *s.Started, s.Ready
				}
			}
		}
		targets = append(targets, t)
	}
	w.m.Probes.Sync(pod, targets)
}

// sync brings a living pod nearer to its spec.
func (w *worker) sync(ctx context.Context, f lifecycle.Facts) time.Time {
	plan := lifecycle.Decide(f)
	completed := w.followResize(f, plan)
	status := w.compute(f, plan, false)
	if completed {
		w.m.Allocator.Shrunk(w.uid, status)
	}
	if podinfo.Finished(status.Phase) {
		// It ended by itself. The end is reported once the rest of it, such as sidecars,
		// has ended, too.
		w.phase = phaseTerminating
		return f.Now
	}
	w.setStatus(status)
	if limit := f.Pod.Spec.ActiveDeadlineSeconds; limit != nil && status.StartTime != nil {
		plan.WakeBy(status.StartTime.Add(time.Duration(*limit) * time.Second))
	}
	w.recordBackoffs(f.Pod, plan)
	if again, ok := w.mount(f, &plan); !ok {
		return again
	}
	if again, ok := w.prepareDevices(f.Pod, &plan); !ok {
		return again
	}
	w.adoptGroup(f)
	w.retryResize(&plan)
	if w.act(ctx, f, plan) {
		return w.m.Now()
	}
	return plan.WakeAt
}

// adoptGroup makes a pod that an earlier process has started count in the weight of its class.
func (w *worker) adoptGroup(f lifecycle.Facts) {
	if box := f.Observed.Sandbox(); w.resizing.group != nil || box == nil || !box.Ready {
		return
	}
	if w.resizing.active || w.usesMore(f.Pod) {
		w.resizing.group = &cgroups.Limits{} // the limits are unknown; the resize sets them in its order
		return
	}
	w.noteGroup(f.Pod)
	if err := w.m.Cgroups.Ensure(f.Pod); err != nil {
		w.m.Logger.Warn("cannot set the limits of a pod again", "pod", f.Pod.Namespace+"/"+f.Pod.Name, "err", err)
	}
}

// usesMore reports whether a pod uses more memory than its allocation. An earlier process may have
// allocated a smaller limit, and ended before its status had it: the kernel would kill
// at that limit.
func (w *worker) usesMore(pod *v1.Pod) bool {
	limits := cgroups.LimitsOf(pod)
	if limits.Memory == 0 {
		return false
	}
	used, err := w.m.Cgroups.MemoryUsage(pod)
	if errors.Is(err, fs.ErrNotExist) {
		return false // nothing runs in a group that is not there
	}
	return err != nil || used > limits.Memory
}

// compute returns the pod's status for clients.
func (w *worker) compute(f lifecycle.Facts, plan lifecycle.Plan, ending bool) v1.PodStatus {
	return lifecycle.Status(lifecycle.StatusInput{
		Facts: f, Plan: plan, Ending: ending, Reason: w.failed.reason, Message: w.failed.message,
		Refused: w.failed.refused, HostIPs: w.m.HostIPs, Runtime: w.m.RuntimeName, Resize: w.resizing.state(),
		Disrupted: w.eviction() != nil, VolumeImages: w.mounts.images,
	})
}

// setStatus passes the pod's status on.
func (w *worker) setStatus(status v1.PodStatus) {
	w.mu.Lock()
	w.status = &status
	pod := w.pod
	w.mu.Unlock()
	w.m.Status.Set(pod, status)
}

// recordBackoffs records one event for each time a container is held back.
func (w *worker) recordBackoffs(pod *v1.Pod, plan lifecycle.Plan) {
	for _, c := range podinfo.Containers(pod) {
		waiting, ok := plan.Waiting[c.Name]
		message := plan.RestartingMessage[c.Name]
		if ok && waiting.Reason == lifecycle.ReasonImagePullBackOff {
			message = fmt.Sprintf("Back-off pulling image %q", c.Image)
		}
		if message == "" {
			w.named(c.Name).recorded = ""
			continue
		}
		if key, is := message+waiting.Message, w.named(c.Name); is.recorded != key {
			is.recorded = key
			kind := v1.EventTypeWarning
			if waiting.Reason == lifecycle.ReasonImagePullBackOff {
				kind = v1.EventTypeNormal
			}
			w.m.Events.Event(pod, c, kind, "BackOff", message)
			if waiting.Reason == lifecycle.ReasonImagePullBackOff {
				w.m.Events.Event(pod, c, v1.EventTypeWarning, "Failed", "Error: "+lifecycle.ReasonImagePullBackOff)
			}
		}
	}
}

// The first and the longest pause between tries to provide volumes.
const (
	firstMountRetry   = 500 * time.Millisecond
	longestMountRetry = 30 * time.Second
	// longestDriverRetry is that of volumes whose driver fails.
	longestDriverRetry = 2*time.Minute + 2*time.Second
)

// mount provides the pod's volumes and keeps them up to date. After a failure it returns when to
// try again; a change of a missing object wakes the pod sooner.
func (w *worker) mount(f lifecycle.Facts, plan *lifecycle.Plan) (retry time.Time, ok bool) {
	pod := f.Pod
	paths, next, err := w.m.Volumes.Mount(w.syncCtx, pod)
	if err == nil {
		w.mounts.paths = paths
		w.mounts.failures.Over()
		w.nameImages(pod)
		if !next.IsZero() {
			plan.WakeBy(next)
		}
		return time.Time{}, true
	}
	if w.syncCtx.Err() != nil {
		return w.m.Now(), false
	}
	if full := (*volumes.AttachLimitError)(nil); errors.As(err, &full) && len(f.Observed.Sandboxes) == 0 {
		w.refuse(pod, "VolumeAttachmentLimitExceeded", full.Error())
		return w.m.Now(), false
	}
	again := w.m.Now().Add(w.mounts.failures.Failed(firstMountRetry, longest(longestMountRetry, err)))
	w.m.Events.Event(pod, nil, v1.EventTypeWarning, "FailedMount", err.Error())
	if w.mounts.paths != nil {
		plan.WakeBy(again)
		return time.Time{}, true // it runs on its present volumes; only an update failed
	}
	return again, false
}

// nameImages finds the names of the images of the pod's volumes for clients: their digests, as for
// containers. An image that was not pulled has none, and is named by its ID.
func (w *worker) nameImages(pod *v1.Pod) {
	ids := imagesOf(pod, w.mounts.paths)
	if maps.Equal(ids, w.mounts.imageIDs) {
		return
	}
	w.mounts.images = map[string]string{}
	for volume, id := range ids {
		image, err := w.m.Images.ImageStatus(w.syncCtx, id)
		if err != nil {
			return // the next look at the pod asks again
		}
		w.mounts.images[volume] = id
		if digests := image.GetRepoDigests(); len(digests) > 0 {
			w.mounts.images[volume] = digests[0]
		}
	}
	w.mounts.imageIDs = ids
}

// imagesOf returns the IDs of the images of a pod's volumes: the path of such a volume is the
// image's ID.
func imagesOf(pod *v1.Pod, paths map[string]string) map[string]string {
	var images map[string]string
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Image != nil && paths[v.Name] != "" {
			if images == nil {
				images = map[string]string{}
			}
			images[v.Name] = paths[v.Name]
		}
	}
	return images
}

// longest returns the longest pause after an error. Drivers get longer ones.
func longest(ordinary time.Duration, err error) time.Duration {
	if driver := (*volumes.DriverError)(nil); errors.As(err, &driver) {
		return longestDriverRetry
	}
	return ordinary
}

// prepareDevices has the pod's devices prepared, before any step that may use them. After a failure
// it returns when to try again.
func (w *worker) prepareDevices(pod *v1.Pod, plan *lifecycle.Plan) (retry time.Time, ok bool) {
	if w.m.Devices == nil || (len(pod.Spec.ResourceClaims) == 0 && pod.Status.ExtendedResourceClaimStatus == nil) {
		return time.Time{}, true
	}
	err := w.m.Devices.Prepare(w.syncCtx, pod)
	if err == nil {
		w.devices.prepared = true
		w.devices.failures.Over()
		return time.Time{}, true
	}
	if w.syncCtx.Err() != nil {
		return w.m.Now(), false
	}
	again := w.m.Now().Add(w.devices.failures.Failed(firstMountRetry, longestMountRetry))
	w.m.Events.Event(pod, nil, v1.EventTypeWarning, "FailedPrepareDynamicResources",
		"Failed to prepare dynamic resources: "+err.Error())
	if w.devices.prepared {
		plan.WakeBy(again)
		return time.Time{}, true // it runs on its present devices
	}
	return again, false
}

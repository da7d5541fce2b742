package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/allocation"
	"github.com/barque/barque/kubelet/cgroups"
	"github.com/barque/barque/kubelet/cri"
	"github.com/barque/barque/kubelet/podinfo"
)

// Limits are the limits that the runtime enforces for a container; 0 means no limit.
type Limits struct {
	Shares int64 // CPU shares of cgroup v1
	Quota  int64 // microseconds of CPU in each period
	Memory int64 // bytes
}

// limitsOf are the limits by which a container's resources are enforced. A container without a
// limit of its own has that of its pod as a whole.
func limitsOf(pod *v1.Pod, c *v1.Container) Limits {
	cpu, memory := podinfo.Limit(pod, c, v1.ResourceCPU), podinfo.Limit(pod, c, v1.ResourceMemory)
	request, ok := c.Resources.Requests[v1.ResourceCPU]
	if !ok {
		request = cpu
	}
	return Limits{Shares: cgroups.Shares(request.MilliValue()), Quota: cgroups.Quota(cpu.MilliValue()), Memory: memory.Value()}
}

// config returns the limits in the runtime's form.
func (l Limits) config() *runtimeapi.LinuxContainerResources {
	r := &runtimeapi.LinuxContainerResources{CpuShares: l.Shares, MemoryLimitInBytes: l.Memory}
	if l.Quota > 0 {
		r.CpuQuota, r.CpuPeriod = l.Quota, cgroups.Period
	}
	return r
}

// resize plans the limits of a running container by its resources: as it runs, or by a restart
// where its policy requires one.
func (p *Plan) resize(f *Facts, c *v1.Container, running *Container) {
	if running.Limits == nil || f.Killing[running.ID] {
		return
	}
	has, wants := *running.Limits, limitsOf(f.Pod, c)
	cpu, memory := has.Shares != wants.Shares || has.Quota != wants.Quota, has.Memory != wants.Memory
	// Nothing enforces a request of memory. A container may want to be restarted for it.
	requests := running.MemoryRequest != nil && *running.MemoryRequest != c.Resources.Requests.Memory().Value()
	if f.Updated[running.ID] == wants {
		cpu, memory = false, false
	}
	// One of an earlier version does not have the limits of its pod. It gets them as it runs, so
	// that an upgrade restarts nothing. A resize follows its policy.
	early := !f.Resized && running.MemoryRequest == nil && has == limitsOf(&v1.Pod{}, c)
	if !early && (cpu && restartsFor(c, v1.ResourceCPU) || (memory || requests) && restartsFor(c, v1.ResourceMemory)) {
		p.Kill = append(p.Kill, Kill{ID: running.ID, Name: c.Name, Replace: true, Resize: true,
			Reason: fmt.Sprintf("Container %s resize requires restart", c.Name)})
		return
	}
	if !cpu && !memory {
		return
	}
	p.Update = append(p.Update, Update{ID: running.ID, Name: c.Name, Limits: wants,
		Lower: wants.Memory > 0 && (has.Memory == 0 || wants.Memory < has.Memory)})
}

// restartsFor reports whether a container must be restarted when a resource of it changes.
func restartsFor(c *v1.Container, name v1.ResourceName) bool {
	for _, policy := range c.ResizePolicy {
		if policy.ResourceName == name {
			return policy.RestartPolicy == v1.RestartContainer
		}
	}
	return false
}

// ResizeState is the state of a resize in a pod's status.
type ResizeState struct {
	Pending    *allocation.Pending
	InProgress bool
	Error      string // why it has not been carried out yet
	Generation int64  // of the spec that is being carried out
}

// resizing is a worker's state of a resize.
type resizing struct {
	known   bool // the fields are set
	active  bool // allocated, and not in force everywhere
	failure string
	given   int64 // the generation whose resources were allocated
	pending *allocation.Pending
	asked   int64     // the generation that is pending
	retryAt time.Time // after a failure
}

func (r *resizing) state() ResizeState {
	return ResizeState{Pending: r.pending, InProgress: r.active, Error: r.failure, Generation: r.given}
}

// How long to wait before a failed or deferred resize is tried again, though nothing has happened.
const (
	retryFailedResize   = 10 * time.Second
	retryDeferredResize = 3 * time.Minute
)

// allot requests the pod's allocation, and puts it into the facts. It is false while other pods are
// unknown. A pod that the node does not admit must be ended.
func (w *worker) allot(pod *v1.Pod, f *Facts) bool {
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
	w.m.Logger.Info("the node does not take a pod", "pod", pod.Namespace+"/"+pod.Name, "reason", reason, "message", message)
	w.refused, w.failReason, w.failMessage = true, reason, "Pod was rejected: "+message
	w.m.Events.Event(pod, nil, v1.EventTypeWarning, reason, message)
}

// noteResize takes in a decision about a resize, and records events of its changes.
func (w *worker) noteResize(pod *v1.Pod, a allocation.Answer) {
	r := &w.resizing
	if !r.known {
		r.known = true
		// An earlier process has recorded these.
		if c := condition(&pod.Status, v1.PodResizePending); c != nil {
			r.pending, r.asked = &allocation.Pending{Reason: c.Reason, Message: c.Message}, c.ObservedGeneration
		}
		if c := condition(&pod.Status, v1.PodResizeInProgress); c != nil {
			r.active = true
			if c.Reason == v1.PodReasonError {
				r.failure = c.Message
			}
		}
	}
	r.given = a.Generation
	if a.Resized {
		r.active, r.failure, r.retryAt = true, "", time.Time{}
		w.tellResize(v1.EventTypeNormal, "ResizeStarted", "Pod resize started", a.Pod, a.Generation, "")
	}
	if p := a.Pending; p != nil && (r.pending == nil || *r.pending != *p || r.asked != pod.Generation) {
		reason := "ResizeDeferred"
		if p.Reason == v1.PodReasonInfeasible {
			reason = "ResizeInfeasible"
		}
		w.tellResize(v1.EventTypeWarning, reason, "Pod resize "+p.Reason, pod, pod.Generation, p.Message)
	}
	r.pending, r.asked = a.Pending, pod.Generation
}

// followResize notes whether an allocation is in force everywhere. It returns true when
// that is new.
func (w *worker) followResize(f Facts, p Plan) (completed bool) {
	r := &w.resizing
	if w.unfinished(f, p) {
		r.active = true
		return false
	}
	if completed = r.active; completed {
		r.active, r.failure = false, ""
		w.tellResize(v1.EventTypeNormal, "ResizeCompleted", "Pod resize completed", f.Pod, r.given, "")
	}
	return completed
}

// unfinished reports whether a container, or the pod's group, does not have its allocation yet.
func (w *worker) unfinished(f Facts, p Plan) bool {
	if len(p.Update) > 0 || w.grouped != nil && *w.grouped != cgroups.LimitsOf(f.Pod) {
		return true
	}
	for _, k := range p.Kill {
		if k.Resize {
			return true
		}
	}
	return w.resizing.active && len(w.replacing) > 0
}

// retryResize has a pending resize tried again.
func (w *worker) retryResize(p *Plan) {
	if r := &w.resizing; r.pending != nil && r.pending.Reason == v1.PodReasonDeferred {
		p.wakeAt(w.m.Now().Add(retryDeferredResize))
	} else if r.failure != "" {
		p.wakeAt(r.retryAt)
	}
}

func (w *worker) noteGroup(pod *v1.Pod) {
	limits := cgroups.LimitsOf(pod)
	w.grouped = &limits
}

// resize carries an allocation out. The pod grows before its containers, and shrinks after them. It
// reports whether anything changed.
func (w *worker) resize(ctx context.Context, f Facts, p Plan) bool {
	r := &w.resizing
	group := w.grouped != nil && *w.grouped != cgroups.LimitsOf(f.Pod)
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
		w.tellResize(v1.EventTypeWarning, "ResizeError", "Pod resize error", f.Pod, r.given, message)
		w.poke() // it is in the status, too
	}
	return false
}

// tryResize does it once. A pod with a container that restarts for the resize shrinks afterwards.
func (w *worker) tryResize(ctx context.Context, f Facts, p Plan, group bool) (changed bool, err error) {
	shrink := group && len(w.replacing) == 0
	if err := w.checkUsage(ctx, f, p, shrink); err != nil {
		return false, err
	}
	if group {
		if err := w.m.Cgroups.Widen(f.Pod); err != nil {
			return false, err
		}
	}
	for _, u := range p.Update {
		delete(w.updated, u.ID) // after a failure, the container's limits are unknown
		if err := w.m.Runtime.UpdateContainerResources(ctx, u.ID, u.Limits.config()); err != nil {
			return changed, fmt.Errorf("update the resources of container %q: %s", u.Name, cri.Message(err))
		}
		w.updated[u.ID], changed = u.Limits, true
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
func (w *worker) checkUsage(ctx context.Context, f Facts, p Plan, shrink bool) error {
	var errs []error
	if limits := cgroups.LimitsOf(f.Pod); shrink && limits.Memory > 0 && (w.grouped.Memory == 0 || limits.Memory < w.grouped.Memory) {
		used, err := w.m.Cgroups.MemoryUsage(f.Pod)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("cannot tell how much memory the pod uses: %w", err))
		case used > limits.Memory:
			errs = append(errs, fmt.Errorf("attempting to set pod memory limit (%d) below current usage (%d)", limits.Memory, used))
		}
	}
	lower := map[string]Update{}
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
				errs = append(errs, fmt.Errorf("attempting to set container %q memory limit (%d) below current usage (%d)", u.Name, u.Limits.Memory, used))
			}
		}
	}
	if err := utilerrors.NewAggregate(errs); err != nil {
		return fmt.Errorf("cannot decrease memory limits: %w", err)
	}
	return nil
}

// tellResize records an event whose text names the resources of all containers.
func (w *worker) tellResize(kind, reason, text string, pod *v1.Pod, generation int64, failure string) {
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
		summary.InitContainers = append(summary.InitContainers, container{pod.Spec.InitContainers[i].Name, pod.Spec.InitContainers[i].Resources})
	}
	for i := range pod.Spec.Containers {
		summary.Containers = append(summary.Containers, container{pod.Spec.Containers[i].Name, pod.Spec.Containers[i].Resources})
	}
	if raw, err := json.Marshal(summary); err == nil {
		text += ": " + string(raw)
	}
	w.m.Events.Event(pod, nil, kind, reason, text)
}

// actualResources returns the resources of a container: its allocation, except where the runtime
// still enforces other limits.
func actualResources(pod *v1.Pod, c *v1.Container, last *Container, before *v1.ContainerStatus) *v1.ResourceRequirements {
	actual := c.Resources.DeepCopy()
	actual.Claims = nil
	if last == nil || last.State != Running || last.Limits != nil && *last.Limits == limitsOf(pod, c) {
		return actual
	}
	var earlier v1.ResourceRequirements
	if before != nil && before.Resources != nil {
		earlier = *before.Resources
	}
	if last.Limits == nil { // the runtime does not report limits; nothing is resized then
		if before != nil && before.Resources != nil && strings.HasSuffix(before.ContainerID, "://"+last.ID) {
			return earlier.DeepCopy()
		}
		return actual
	}
	has, wants, had := *last.Limits, limitsOf(pod, c), limitsOf(pod, &v1.Container{Resources: earlier})
	// An amount is shown as it was written, as long as the value is the same.
	show := func(list *v1.ResourceList, name v1.ResourceName, has, wants, had int64, earlier v1.ResourceList, read func() *resource.Quantity) {
		_, own := (*list)[name]
		q, ok := earlier[name]
		if has == wants || !own && !ok { // that of its pod is not the container's
			return
		}
		if ok && has == had {
			set(list, name, q)
		} else if q := read(); q != nil {
			set(list, name, *q)
		} else {
			delete(*list, name)
		}
	}
	show(&actual.Requests, v1.ResourceCPU, has.Shares, wants.Shares, had.Shares, earlier.Requests, func() *resource.Quantity {
		if has.Shares <= cgroups.Shares(0) {
			return nil
		}
		return resource.NewMilliQuantity((has.Shares*1000+1023)/1024, resource.DecimalSI)
	})
	show(&actual.Limits, v1.ResourceCPU, has.Quota, wants.Quota, had.Quota, earlier.Limits, func() *resource.Quantity {
		if has.Quota == 0 {
			return nil
		}
		return resource.NewMilliQuantity(has.Quota*1000/cgroups.Period, resource.DecimalSI)
	})
	show(&actual.Limits, v1.ResourceMemory, has.Memory, wants.Memory, had.Memory, earlier.Limits, func() *resource.Quantity {
		if has.Memory == 0 {
			return nil
		}
		return resource.NewQuantity(has.Memory, resource.BinarySI)
	})
	// Nothing enforces a request of memory: it comes with all else.
	if q, ok := earlier.Requests[v1.ResourceMemory]; ok {
		set(&actual.Requests, v1.ResourceMemory, q)
	}
	return actual
}

func set(list *v1.ResourceList, name v1.ResourceName, q resource.Quantity) {
	if *list == nil {
		*list = v1.ResourceList{}
	}
	(*list)[name] = q
}

// setResizeConditions sets the conditions of a resize while there is one.
func setResizeConditions(in *StatusInput, s *v1.PodStatus) {
	say := func(kind v1.PodConditionType, is bool, reason, message string, generation int64) {
		if !is {
			dropCondition(s, kind)
			return
		}
		setCondition(in, s, kind, true, reason, message)
		condition(s, kind).ObservedGeneration = generation
	}
	r := in.Resize
	pending := allocation.Pending{}
	if r.Pending != nil {
		pending = *r.Pending
	}
	say(v1.PodResizePending, r.Pending != nil && !in.Ending, pending.Reason, pending.Message, in.Pod.Generation)
	reason := ""
	if r.Error != "" {
		reason = v1.PodReasonError
	}
	say(v1.PodResizeInProgress, r.InProgress && !in.Ending, reason, r.Error, r.Generation)
	setResources(in, s)
}

// setResources sets the allocated and the actual resources of the whole pod. Until a resize is
// carried out, the actual ones are the earlier ones. The overhead of its spec is in neither:
// readers add it.
func setResources(in *StatusInput, s *v1.PodStatus) {
	before := &in.Pod.Status
	s.AllocatedResources, s.Resources = nil, nil
	if in.Refused {
		return
	}
	given := total(in.Pod, false)
	s.AllocatedResources = given.Requests
	has := given
	switch active := in.Resize.InProgress; {
	case before.Resources != nil && (active || in.Ending):
		has = before.Resources.DeepCopy()
		if active && condition(before, v1.PodResizeInProgress) != nil && !apiequality.Semantic.DeepEqual(before.AllocatedResources, given.Requests) {
			raise(&has.Requests, before.AllocatedResources) // some of it may have been carried out
		}
	case active: // an earlier version has recorded none
		containers := *in.Pod
		containers.Spec.Resources = nil
		containers.Status = v1.PodStatus{InitContainerStatuses: s.InitContainerStatuses, ContainerStatuses: s.ContainerStatuses}
		still := total(&containers, true)
		has = given.DeepCopy()
		raise(&has.Requests, still.Requests)
		raise(&has.Limits, still.Limits)
	}
	if len(has.Requests)+len(has.Limits) > 0 {
		s.Resources = has
	}
}

// total sums a pod up by its spec, or by the larger of that and of its
// containers' actual resources.
func total(pod *v1.Pod, actual bool) *v1.ResourceRequirements {
	options := resourcehelper.PodResourcesOptions{UseStatusResources: actual, ExcludeOverhead: true}
	var r v1.ResourceRequirements
	raise(&r.Requests, resourcehelper.PodRequests(pod, options))
	raise(&r.Limits, resourcehelper.PodLimits(pod, options))
	return &r
}

// raise makes each amount at least that of another list.
func raise(list *v1.ResourceList, least v1.ResourceList) {
	for name, q := range least {
		if has, ok := (*list)[name]; !ok || has.Cmp(q) < 0 {
			set(list, name, q)
		}
	}
}

func dropCondition(s *v1.PodStatus, kind v1.PodConditionType) {
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			s.Conditions = append(s.Conditions[:i], s.Conditions[i+1:]...)
			return
		}
	}
}

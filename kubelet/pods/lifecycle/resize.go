package lifecycle

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/allocation"
	"github.com/barque/barque/kubelet/cgroups"
	"github.com/barque/barque/kubelet/podinfo"
)

// Limits are the limits that the runtime enforces for a container; 0 means no limit.
type Limits struct {
	Shares int64 // CPU shares of cgroup v1
	Quota  int64 // microseconds of CPU in each period
	Memory int64 // bytes
}

// LimitsOf are the limits by which a container's resources are enforced. A container without a
// limit of its own has that of its pod as a whole.
func LimitsOf(pod *v1.Pod, c *v1.Container) Limits {
	cpu, memory := podinfo.Limit(pod, c, v1.ResourceCPU), podinfo.Limit(pod, c, v1.ResourceMemory)
	request, ok := c.Resources.Requests[v1.ResourceCPU]
	if !ok {
		request = cpu
	}
	return Limits{Shares: cgroups.Shares(request.MilliValue()), Quota: cgroups.Quota(cpu.MilliValue()),
		Memory: memory.Value()}
}

// Resources returns the limits in the runtime's form.
func (l Limits) Resources() *runtimeapi.LinuxContainerResources {
	r := &runtimeapi.LinuxContainerResources{CpuShares: l.Shares, MemoryLimitInBytes: l.Memory}
	if l.Quota > 0 {
		r.CpuQuota, r.CpuPeriod = l.Quota, cgroups.Period
	}
	return r
}

// resize plans the limits of a running container by its resources: as it runs, or by a restart
// where its policy requires one.
func (p *Plan) resize(f *Facts, c *v1.Container, running *Container) {
	if running.Limits == nil || f.Instances[running.ID].Killing {
		return
	}
	has, wants := *running.Limits, LimitsOf(f.Pod, c)
	cpu, memory := has.Shares != wants.Shares || has.Quota != wants.Quota, has.Memory != wants.Memory
	// Nothing enforces a request of memory. A container may want to be restarted for it.
	requests := running.MemoryRequest != nil && *running.MemoryRequest != c.Resources.Requests.Memory().Value()
	if done := f.Instances[running.ID].Updated; done != nil && *done == wants {
		cpu, memory = false, false
	}
	// One of an earlier version does not have the limits of its pod. It gets them as it runs, so
	// that an upgrade restarts nothing. A resize follows its policy.
	early := !f.Resized && running.MemoryRequest == nil && has == LimitsOf(&v1.Pod{}, c)
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

// actualResources returns the resources of a container: its allocation, except where the runtime
// still enforces other limits.
func actualResources(
	pod *v1.Pod, c *v1.Container, last *Container, before *v1.ContainerStatus,
) *v1.ResourceRequirements {
	actual := c.Resources.DeepCopy()
	actual.Claims = nil
	if last == nil || last.State != Running || last.Limits != nil && *last.Limits == LimitsOf(pod, c) {
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
	has, wants, had := *last.Limits, LimitsOf(pod, c), LimitsOf(pod, &v1.Container{Resources: earlier})
	// An amount is shown as it was written, as long as the value is the same.
	show := func(
		list *v1.ResourceList, name v1.ResourceName, has, wants, had int64, earlier v1.ResourceList,
		read func() *resource.Quantity,
	) {
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
	show(&actual.Requests, v1.ResourceCPU, has.Shares, wants.Shares, had.Shares, earlier.Requests,
		func() *resource.Quantity {
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
	show(&actual.Limits, v1.ResourceMemory, has.Memory, wants.Memory, had.Memory, earlier.Limits,
		func() *resource.Quantity {
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
		podinfo.Condition(s, kind).ObservedGeneration = generation
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
		if active && podinfo.Condition(before, v1.PodResizeInProgress) != nil &&
			!apiequality.Semantic.DeepEqual(before.AllocatedResources, given.Requests) {
			raise(&has.Requests, before.AllocatedResources) // some of it may have been carried out
		}
	case active: // an earlier version has recorded none
		containers := *in.Pod
		containers.Spec.Resources = nil
		containers.Status = v1.PodStatus{InitContainerStatuses: s.InitContainerStatuses,
			ContainerStatuses: s.ContainerStatuses}
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

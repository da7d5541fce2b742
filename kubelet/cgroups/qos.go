package cgroups

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/barque/barque/kubelet/restarts"
)

// QoS returns the quality-of-service class of a pod: Guaranteed when every container has limits of
// CPU and memory and equal requests, BestEffort when no container has any, Burstable otherwise.
func QoS(pod *v1.Pod) v1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	if r := pod.Spec.Resources; r != nil && (computes(r.Requests) || computes(r.Limits)) {
		if guaranteed(*r) {
			return v1.PodQOSGuaranteed
		}
		return v1.PodQOSBurstable
	}
	allGuaranteed, any := true, false
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			r := list[i].Resources
			any = any || computes(r.Requests) || computes(r.Limits)
			allGuaranteed = allGuaranteed && guaranteed(r)
		}
	}
	switch {
	case !any:
		return v1.PodQOSBestEffort
	case allGuaranteed:
		return v1.PodQOSGuaranteed
	default:
		return v1.PodQOSBurstable
	}
}

func computes(list v1.ResourceList) bool {
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		if q, ok := list[name]; ok && q.Sign() > 0 {
			return true
		}
	}
	return false
}

func guaranteed(r v1.ResourceRequirements) bool {
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		limit, ok := r.Limits[name]
		if !ok || limit.Sign() <= 0 {
			return false
		}
		if request, ok := r.Requests[name]; ok && request.Cmp(limit) != 0 {
			return false
		}
	}
	return true
}

// Limits of a cgroup in the terms of cgroup v1; 0 means not limited.
type Limits struct {
	Shares  int64
	Quota   int64 // microseconds of each Period
	Memory  int64 // bytes
	PidsMax int64
}

// LimitsOf returns the limits of a pod as a whole, without the node's limit of processes.
func LimitsOf(pod *v1.Pod) Limits { return podLimits(pod, 0) }

// podLimits sums the containers of a pod the way the scheduler does. A resource is limited for the
// whole pod only when every container limits it.
func podLimits(pod *v1.Pod, pidsMax int64) Limits {
	l := Limits{PidsMax: pidsMax}
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	sum := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	limited := func(name v1.ResourceName) bool { return limitsAll(pod, name) }
	cpu := requests[v1.ResourceCPU]
	if limited(v1.ResourceCPU) {
		limit := sum[v1.ResourceCPU]
		l.Quota = Quota(limit.MilliValue())
		if cpu.IsZero() {
			cpu = limit
		}
	}
	l.Shares = Shares(cpu.MilliValue())
	if limited(v1.ResourceMemory) {
		memory := sum[v1.ResourceMemory]
		l.Memory = memory.Value()
	}
	return l
}

func limitsAll(pod *v1.Pod, name v1.ResourceName) bool {
	if r := pod.Spec.Resources; r != nil {
		if q, ok := r.Limits[name]; ok {
			return q.Sign() > 0
		}
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if q, ok := list[i].Resources.Limits[name]; !ok || q.Sign() <= 0 {
				return false
			}
		}
	}
	return true
}

const (
	minShares   = 2
	maxShares   = 262144
	cfsPeriod   = 100000 // microseconds
	minCFSQuota = 1000
)

// Shares turns a CPU request into cgroup v1 CPU shares: 1024 for a whole CPU.
func Shares(milliCPU int64) int64 {
	return min(max(milliCPU*1024/1000, minShares), maxShares)
}

// Quota turns a CPU limit into microseconds per period of Period; 0 for no limit.
func Quota(milliCPU int64) int64 {
	if milliCPU <= 0 {
		return 0
	}
	return max(milliCPU*cfsPeriod/1000, minCFSQuota)
}

// Period is the length of a CFS period in microseconds.
const Period = cfsPeriod

// weight maps cgroup v1 shares to cgroup v2 weight, both over their whole range (KEP-2254).
func weight(shares int64) int64 {
	return 1 + (shares-minShares)*9999/(maxShares-minShares)
}

// OOMScoreAdj returns the score by which the kernel chooses processes to kill when memory runs out:
// first those of BestEffort pods, then those that use more than their requests, and Guaranteed pods
// last. memoryCapacity is the machine's.
func OOMScoreAdj(pod *v1.Pod, c *v1.Container, memoryCapacity int64) int64 {
	if pod.Spec.PriorityClassName == "system-node-critical" || pod.Spec.PriorityClassName == "system-cluster-critical" {
		return -997
	}
	switch QoS(pod) {
	case v1.PodQOSGuaranteed:
		return -997
	case v1.PodQOSBestEffort:
		return 1000
	}
	if memoryCapacity <= 0 {
		return 999
	}
	request := memoryRequest(c)
	if slices.ContainsFunc(pod.Spec.InitContainers,
		func(i v1.Container) bool { return i.Name == c.Name && restarts.IsSidecar(&i) }) {
		// A sidecar lives at least as long as the containers that it serves (KEP-753).
		least := memoryRequest(&pod.Spec.Containers[0])
		for i := range pod.Spec.Containers {
			least = min(least, memoryRequest(&pod.Spec.Containers[i]))
		}
		request = max(request, least)
	}
	return min(max(1000-1000*(request+unassigned(pod))/memoryCapacity, 3), 999)
}

func memoryRequest(c *v1.Container) int64 {
	request, ok := c.Resources.Requests[v1.ResourceMemory]
	if !ok {
		request = c.Resources.Limits[v1.ResourceMemory]
	}
	return request.Value()
}

// unassigned is each container's part of the memory that the pod as a whole requests beyond the
// requests of its containers (KEP-2837).
func unassigned(pod *v1.Pod) int64 {
	if pod.Spec.Resources == nil {
		return 0
	}
	whole := pod.Spec.Resources.Requests.Memory().Value()
	own := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
	return max(whole-own.Memory().Value(), 0) / int64(max(len(pod.Spec.InitContainers)+len(pod.Spec.Containers), 1))
}

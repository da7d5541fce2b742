package framework

import (
	"maps"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	fwk "k8s.io/kube-scheduler/framework"
)

// Default requests for the score of containers without requests. Without them any number of such
// pods would seem free and land on one node.
const (
	DefaultMilliCPURequest int64 = 100
	DefaultMemoryRequest   int64 = 200 << 20
)

// Resource is an amount of each resource. CPU is in thousandths of a core; memory and storage are
// in bytes; other resources are in their own whole unit.
type Resource struct {
	MilliCPU         int64
	Memory           int64
	EphemeralStorage int64
	AllowedPodNumber int
	ScalarResources  map[v1.ResourceName]int64
}

var _ fwk.Resource = (*Resource)(nil)

// NewResource returns the amounts in list.
func NewResource(list v1.ResourceList) *Resource {
	r := &Resource{}
	for name, q := range list {
		switch name {
		case v1.ResourceCPU:
			r.MilliCPU = q.MilliValue()
		case v1.ResourceMemory:
			r.Memory = q.Value()
		case v1.ResourceEphemeralStorage:
			r.EphemeralStorage = q.Value()
		case v1.ResourcePods:
			r.AllowedPodNumber = int(q.Value())
		default:
			r.setScalar(name, q.Value())
		}
	}
	return r
}

func (r *Resource) setScalar(name v1.ResourceName, amount int64) {
	if r.ScalarResources == nil {
		r.ScalarResources = map[v1.ResourceName]int64{}
	}
	r.ScalarResources[name] = amount
}

// GetMilliCPU returns thousandths of a core.
func (r *Resource) GetMilliCPU() int64 { return r.MilliCPU }

// GetMemory returns bytes.
func (r *Resource) GetMemory() int64 { return r.Memory }

// GetEphemeralStorage returns bytes.
func (r *Resource) GetEphemeralStorage() int64 { return r.EphemeralStorage }

// GetAllowedPodNumber returns how many pods a node takes.
func (r *Resource) GetAllowedPodNumber() int { return r.AllowedPodNumber }

// GetScalarResources returns all other resources. The caller must not change the map.
func (r *Resource) GetScalarResources() map[v1.ResourceName]int64 { return r.ScalarResources }

// Get returns the amount of one resource.
func (r *Resource) Get(name v1.ResourceName) int64 {
	switch name {
	case v1.ResourceCPU:
		return r.MilliCPU
	case v1.ResourceMemory:
		return r.Memory
	case v1.ResourceEphemeralStorage:
		return r.EphemeralStorage
	case v1.ResourcePods:
		return int64(r.AllowedPodNumber)
	default:
		return r.ScalarResources[name]
	}
}

// SetMaxResource raises each amount to that in list where list has more.
func (r *Resource) SetMaxResource(list v1.ResourceList) {
	other := NewResource(list)
	r.MilliCPU = max(r.MilliCPU, other.MilliCPU)
	r.Memory = max(r.Memory, other.Memory)
	r.EphemeralStorage = max(r.EphemeralStorage, other.EphemeralStorage)
	for name, amount := range other.ScalarResources {
		r.setScalar(name, max(r.ScalarResources[name], amount))
	}
}

// add changes r by sign times other. The number of pods is not an amount that pods carry.
func (r *Resource) add(other fwk.Resource, sign int64) {
	r.MilliCPU += sign * other.GetMilliCPU()
	r.Memory += sign * other.GetMemory()
	r.EphemeralStorage += sign * other.GetEphemeralStorage()
	for name, amount := range other.GetScalarResources() {
		r.setScalar(name, r.ScalarResources[name]+sign*amount)
	}
}

func (r *Resource) clone() Resource {
	c := *r
	c.ScalarResources = maps.Clone(r.ScalarResources)
	return c
}

// PodResource returns a pod's requests: the larger of the sum of its running containers and the
// peak of its start. Sidecars, overhead and pod-level requests count as the Kubernetes API defines
// them.
func PodResource(pod *v1.Pod) fwk.PodResource {
	// A pod occupies its old resources on the node until a resize down is complete.
	options := resourcehelper.PodResourcesOptions{UseStatusResources: true,
		InPlacePodLevelResourcesVerticalScalingEnabled: true}
	r := NewResource(resourcehelper.PodRequests(pod, options))
	options.NonMissingContainerRequests = defaultRequests()
	nonZero := resourcehelper.PodRequests(pod, options)
	return fwk.PodResource{
		Resource: r,
		Non0CPU:  nonZero.Cpu().MilliValue(),
		Non0Mem:  nonZero.Memory().Value(),
	}
}

// IsExtendedResource reports whether a resource is extended, such as one of a device plugin: its
// domain is not Kubernetes' own.
func IsExtendedResource(name v1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.Contains(string(name), v1.ResourceDefaultNamespacePrefix) &&
		!strings.HasPrefix(string(name), v1.DefaultResourceRequestsPrefix)
}

// IsDeviceResource reports whether a DeviceClass may stand for the resource.
func IsDeviceResource(name v1.ResourceName) bool {
	return IsExtendedResource(name) || strings.HasPrefix(string(name), resourcev1.ResourceDeviceClassPrefix)
}

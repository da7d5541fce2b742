package eviction

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/barque/barque/kubelet/admission"
)

// Observation is the state of a signal.
type Observation struct {
	Available, Capacity int64
}

// Memory keeps the state between decisions.
type Memory struct {
	since    map[int]time.Time                  // since when a threshold is met, by its place in the list
	lastSeen map[v1.NodeConditionType]time.Time // when a condition was last due
}

// Verdict is the decision that follows from an observation.
type Verdict struct {
	// Conditions are the node's conditions, in order.
	Conditions []v1.NodeConditionType
	// Short is the threshold to act on now; nil when none has been met for long enough.
	Short *Threshold
	// Met are all thresholds that are met, whether their grace is over or not.
	Met []Threshold
}

// Judge decides which conditions the node has and which threshold is met. It keeps a condition for
// transition after it was last due, so that pods do not come back only to be evicted again.
func Judge(
	m *Memory, thresholds []Threshold, seen map[Signal]Observation, transition time.Duration, now time.Time,
) Verdict {
	if m.since == nil {
		m.since, m.lastSeen = map[int]time.Time{}, map[v1.NodeConditionType]time.Time{}
	}
	var v Verdict
	var ripe []Threshold
	for i, t := range thresholds {
		o, ok := seen[t.Signal]
		if !ok {
			if !m.since[i].IsZero() {
				m.lastSeen[about[t.Signal].condition] = now // no observation shows that it is over
			}
			continue
		}
		limit := t.Value.of(o.Capacity)
		if _, was := m.since[i]; was {
			limit += t.MinReclaim.of(o.Capacity)
		}
		if o.Available >= limit {
			delete(m.since, i)
			continue
		}
		if _, was := m.since[i]; !was {
			m.since[i] = now
		}
		v.Met = append(v.Met, t)
		m.lastSeen[about[t.Signal].condition] = now
		if now.Sub(m.since[i]) >= t.Grace {
			ripe = append(ripe, t)
		}
	}
	for _, condition := range []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
		if last, ok := m.lastSeen[condition]; ok && (last.Equal(now) || now.Sub(last) < transition) {
			v.Conditions = append(v.Conditions, condition)
		}
	}
	// Memory first: without it nothing else can be done. Of one signal, the hard threshold.
	slices.SortStableFunc(ripe, func(a, b Threshold) int {
		memory := func(t Threshold) int {
			if t.Signal == MemoryAvailable {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(memory(a), memory(b)), cmp.Compare(a.Grace, b.Grace))
	})
	if len(ripe) > 0 {
		v.Short = &ripe[0]
	}
	return v
}

// ContainerUse has the figures of one container.
type ContainerUse struct {
	Name   string
	Memory int64 // working set
	Disk   int64 // writable layer and logs
	Inodes int64
}

// Use has the figures of a pod.
type Use struct {
	Containers []ContainerUse
	Memory     int64 // working set of the whole pod, when known
	Volumes    map[string]int64
	// VolumeInodes are those of all its volumes on the node's disk.
	VolumeInodes int64
	Processes    int64
}

func (u Use) memory() int64 {
	var sum int64
	for _, c := range u.Containers {
		sum += c.Memory
	}
	return max(sum, u.Memory)
}

func (u Use) disk() int64 {
	var sum int64
	for _, c := range u.Containers {
		sum += c.Disk
	}
	for _, n := range u.Volumes {
		sum += n
	}
	return sum
}

func (u Use) inodes() int64 {
	sum := u.VolumeInodes
	for _, c := range u.Containers {
		sum += c.Inodes
	}
	return sum
}

// used returns a pod's use of a resource and its request.
func used(name v1.ResourceName, pod *v1.Pod, u Use) (usage, request int64) {
	requests := admission.Requests(pod)
	switch name {
	case v1.ResourceMemory:
		return u.memory(), requests.Memory().Value()
	case v1.ResourceEphemeralStorage:
		return u.disk(), requests.StorageEphemeral().Value()
	case resourceInodes:
		return u.inodes(), 0
	default:
		return u.Processes, 0
	}
}

// Candidate is a pod that may be evicted.
type Candidate struct {
	Pod *v1.Pod
	Use Use
}

// Rank orders pods for eviction for want of a resource: those above their requests first, then by
// priority, then by the excess over their requests. Pods that the node must run are left out.
func Rank(name v1.ResourceName, pods []Candidate) []Candidate {
	list := slices.DeleteFunc(slices.Clone(pods), func(c Candidate) bool { return admission.IsCritical(c.Pod) })
	slices.SortStableFunc(list, func(a, b Candidate) int {
		usedA, askedA := used(name, a.Pod, a.Use)
		usedB, askedB := used(name, b.Pod, b.Use)
		exceeds := func(used, asked int64) int {
			if name == resourcePIDs || used > asked {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(exceeds(usedA, askedA), exceeds(usedB, askedB)),
			cmp.Compare(priority(a.Pod), priority(b.Pod)), cmp.Compare(usedB-askedB, usedA-askedA))
	})
	return list
}

func priority(pod *v1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// Message is the message for users about an eviction, with figures.
func Message(t Threshold, o Observation, c Candidate) string {
	name := about[t.Signal].resource
	message := fmt.Sprintf("The node was low on resource: %v. ", name)
	if limit := t.Value.of(o.Capacity); limit > 0 {
		message += fmt.Sprintf("Threshold quantity: %s, available: %s. ", shown(t.Signal, limit),
			shown(t.Signal, o.Available))
	}
	for _, use := range c.Use.Containers {
		var n int64
		switch name {
		case v1.ResourceMemory:
			n = use.Memory
		case v1.ResourceEphemeralStorage:
			n = use.Disk
		default:
			continue
		}
		request := resource.Quantity{}
		for _, list := range [][]v1.Container{c.Pod.Spec.InitContainers, c.Pod.Spec.Containers} {
			for i := range list {
				if list[i].Name == use.Name {
					request = list[i].Resources.Requests[name]
				}
			}
		}
		if n > request.Value() {
			message += fmt.Sprintf("Container %s was using %s, request is %s, has larger consumption of %v. ",
				use.Name, bytes(n), request.String(), name)
		}
	}
	return message
}

func shown(s Signal, n int64) string {
	switch s {
	case NodeFsInodesFree, ImageFsInodesFree, PIDAvailable:
		return resource.NewQuantity(n, resource.DecimalSI).String()
	}
	return bytes(n)
}

// bytes writes an amount in whole KiB, as kubelets do.
func bytes(n int64) string {
	return resource.NewQuantity((n+1023)>>10<<10, resource.BinarySI).String()
}

// OverLimit returns a message about the limit of local storage that a pod exceeds; empty when none.
func OverLimit(c Candidate) string {
	for i := range c.Pod.Spec.Volumes {
		v := &c.Pod.Spec.Volumes[i]
		if v.EmptyDir == nil || v.EmptyDir.SizeLimit == nil || v.EmptyDir.SizeLimit.Sign() <= 0 {
			continue
		}
		if n, ok := c.Use.Volumes[v.Name]; ok && n > v.EmptyDir.SizeLimit.Value() {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name,
				v.EmptyDir.SizeLimit.String())
		}
	}
	limits := resourcehelper.PodLimits(c.Pod, resourcehelper.PodResourcesOptions{})
	limit, ok := limits[v1.ResourceEphemeralStorage]
	if !ok {
		return ""
	}
	// Where some container has no limit, the sum is no limit of the pod.
	if c.Use.disk() > limit.Value() && allLimited(c.Pod) {
		return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ",
			limit.String())
	}
	for _, use := range c.Use.Containers {
		for i := range c.Pod.Spec.Containers {
			k := &c.Pod.Spec.Containers[i]
			if q, ok := k.Resources.Limits[v1.ResourceEphemeralStorage]; ok && k.Name == use.Name && q.Sign() > 0 &&
				use.Disk > q.Value() {
				return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", k.Name, q.String())
			}
		}
	}
	return ""
}

func allLimited(pod *v1.Pod) bool {
	for i := range pod.Spec.Containers {
		if _, ok := pod.Spec.Containers[i].Resources.Limits[v1.ResourceEphemeralStorage]; !ok {
			return false
		}
	}
	return true
}

// MeasuresDisk reports whether a pod's use of the disk matters while nothing is short.
func MeasuresDisk(pod *v1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if e := pod.Spec.Volumes[i].EmptyDir; e != nil && e.SizeLimit != nil && e.Medium != v1.StorageMediumMemory {
			return true
		}
	}
	for i := range pod.Spec.Containers {
		if _, ok := pod.Spec.Containers[i].Resources.Limits[v1.ResourceEphemeralStorage]; ok {
			return true
		}
	}
	return false
}

// Package admission decides whether a node takes a pod that is bound to it.
//
// The scheduler has checked most of it. The node checks again: pods may name a node themselves, two
// schedulers may have bound pods at once, and only the node knows its sysctls and AppArmor. Check
// is a pure function. Reasons and messages are upstream's, because users grep for them.
//
// It keeps no pods and ends none: package allocation keeps the resources of each pod, and package
// pods ends refused pods.
package admission

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// Refusal is why a node does not take a pod.
type Refusal struct {
	Reason  string
	Message string
	// Resource is set when the node has too little of it.
	Resource v1.ResourceName
	// ByNode is set when labels or taints of the Node are the reason: a newer Node may have others.
	ByNode bool
}

// Input is the input of a decision.
type Input struct {
	// Pod has in its spec the resources that it would get.
	Pod *v1.Pod
	// Others are the admitted pods that still hold resources, with their allocations
	// in their specs.
	Others []*v1.Pod
	Node   *v1.Node
	// UnsafeSysctls are the sysctls, or prefixes of them that end in *, that pods may set besides
	// the safe ones.
	UnsafeSysctls []string
	// AppArmor is set when the host can confine containers with AppArmor.
	AppArmor bool
	// Pressure holds the node's conditions under which it takes no more pods.
	Pressure []v1.NodeConditionType
	// ShuttingDown is set while the machine goes down.
	ShuttingDown bool
}

// Check returns why the node must not take the pod; nil when it can.
func Check(in Input) *Refusal {
	for _, check := range []func(*Input) *Refusal{
		underPressure, shuttingDown, systems, forbiddenSysctls, appArmor, Fit, affinity, name, ports, taints,
	} {
		if refusal := check(&in); refusal != nil {
			return refusal
		}
	}
	return nil
}

// IsStatic reports whether a pod comes from a manifest of the node.
func IsStatic(pod *v1.Pod) bool {
	source, ok := pod.Annotations["kubernetes.io/config.source"]
	return ok && source != "api"
}

// IsCritical reports whether the node must run a pod even when it is short of resources: static and
// mirror pods, and pods with a system priority.
func IsCritical(pod *v1.Pod) bool {
	if _, mirror := pod.Annotations[v1.MirrorPodAnnotationKey]; mirror || IsStatic(pod) {
		return true
	}
	return pod.Spec.Priority != nil && *pod.Spec.Priority >= systemCriticalPriority
}

// systemCriticalPriority is the lowest priority of the classes system-*-critical.
const systemCriticalPriority = 2000000000

// underPressure refuses pods while the node is short of a resource. Short of memory only, it still
// admits pods that tolerate that, and pods with a request or a limit.
func underPressure(in *Input) *Refusal {
	if len(in.Pressure) == 0 || IsCritical(in.Pod) {
		return nil
	}
	if len(in.Pressure) == 1 && in.Pressure[0] == v1.NodeMemoryPressure {
		tolerated := schedulinghelper.TolerationsTolerateTaint(klog.Background(), in.Pod.Spec.Tolerations,
			&v1.Taint{Key: v1.TaintNodeMemoryPressure, Effect: v1.TaintEffectNoSchedule}, false)
		if tolerated || !bestEffort(in.Pod) {
			return nil
		}
	}
	return &Refusal{Reason: "Evicted", Message: fmt.Sprintf("The node had condition: %v. ", in.Pressure)}
}

// bestEffort reports whether no container of a pod has a request or a limit of CPU or memory.
func bestEffort(pod *v1.Pod) bool {
	lists := []v1.ResourceList{}
	if r := pod.Spec.Resources; r != nil {
		lists = append(lists, r.Requests, r.Limits)
	}
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			lists = append(lists, containers[i].Resources.Requests, containers[i].Resources.Limits)
		}
	}
	return !slices.ContainsFunc(lists, func(list v1.ResourceList) bool {
		return !list.Cpu().IsZero() || !list.Memory().IsZero()
	})
}

func shuttingDown(in *Input) *Refusal {
	if !in.ShuttingDown {
		return nil
	}
	return &Refusal{Reason: "NodeShutdown", Message: "Pod was rejected as the node is shutting down."}
}

// systems refuses pods of another operating system.
func systems(in *Input) *Refusal {
	if os := in.Pod.Spec.NodeSelector[v1.LabelOSStable]; os != "" && os != string(v1.Linux) {
		return &Refusal{Reason: "PodOSSelectorNodeLabelDoesNotMatch",
			Message: "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"}
	}
	if os := in.Pod.Spec.OS; os != nil && os.Name != v1.Linux {
		return &Refusal{Reason: "PodOSNotSupported",
			Message: "Failed to admit pod as the OS field doesn't match node OS"}
	}
	return nil
}

// appArmor refuses a profile that the host cannot apply.
func appArmor(in *Input) *Refusal {
	if in.AppArmor || !wantsAppArmor(in.Pod) {
		return nil
	}
	return &Refusal{Reason: "AppArmor", Message: "Cannot enforce AppArmor: AppArmor is not enabled on the host"}
}

func wantsAppArmor(pod *v1.Pod) bool {
	confines := func(p *v1.AppArmorProfile) bool { return p != nil && p.Type != v1.AppArmorProfileTypeUnconfined }
	if sc := pod.Spec.SecurityContext; sc != nil && confines(sc.AppArmorProfile) {
		return true
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if sc := list[i].SecurityContext; sc != nil && confines(sc.AppArmorProfile) {
				return true
			}
		}
	}
	return false
}

// Fit compares the pod's requests with the resources that the other pods leave.
func Fit(in *Input) *Refusal {
	free := in.Node.Status.Allocatable
	if limit, ok := free[v1.ResourcePods]; ok && int64(len(in.Others))+1 > limit.Value() {
		return insufficient(v1.ResourcePods, 1, int64(len(in.Others)), limit.Value())
	}
	wanted := withoutClaimed(in.Pod, Requests(in.Pod))
	used := v1.ResourceList{}
	for _, other := range in.Others {
		for name, q := range withoutClaimed(other, Held(other)) {
			sum := used[name]
			sum.Add(q)
			used[name] = sum
		}
	}
	for _, name := range ordered(wanted) {
		capacity, known := free[name]
		if !known && !native(name) {
			continue // an extended resource that the node does not advertise
		}
		want, have, all := amount(name, wanted), amount(name, used), amount(name, v1.ResourceList{name: capacity})
		if want > 0 && want > all-have {
			return insufficient(name, want, have, all)
		}
	}
	return nil
}

// withoutClaimed removes the extended resources that a pod has by a ResourceClaim. A DeviceClass
// stands for them, and the scheduler has chosen the devices. Resources of device plugins stay.
func withoutClaimed(pod *v1.Pod, list v1.ResourceList) v1.ResourceList {
	if claimed := pod.Status.ExtendedResourceClaimStatus; claimed != nil {
		for i := range claimed.RequestMappings {
			delete(list, v1.ResourceName(claimed.RequestMappings[i].ResourceName))
		}
	}
	return list
}

// Requests returns the requests of a pod's spec.
func Requests(pod *v1.Pod) v1.ResourceList {
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
}

// Held returns the resources that a pod takes of the node: the larger of its allocation and its
// containers' actual resources, which are larger during a resize down.
func Held(pod *v1.Pod) v1.ResourceList {
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{
		UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true})
}

// ordered lists CPU, memory and storage first, then the others by name, so that the same pod is
// always refused for the same reason.
func ordered(list v1.ResourceList) []v1.ResourceName {
	names := []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}
	var others []v1.ResourceName
	for name := range list {
		if !slices.Contains(names, name) {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	return append(names, others...)
}

func native(name v1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), v1.ResourceDefaultNamespacePrefix)
}

// amount returns the amount of a resource: thousandths of CPUs, and whole units of all others.
func amount(name v1.ResourceName, list v1.ResourceList) int64 {
	q := list[name]
	if name == v1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

func insufficient(name v1.ResourceName, want, used, capacity int64) *Refusal {
	return &Refusal{Reason: "OutOf" + string(name), Resource: name, Message: fmt.Sprintf(
		"Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, want, used, capacity)}
}

func predicate(name, message string) *Refusal {
	return &Refusal{Reason: name, Message: fmt.Sprintf("Predicate %s failed: %s", name, message)}
}

func byNode(r *Refusal) *Refusal {
	r.ByNode = true
	return r
}

func affinity(in *Input) *Refusal {
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(in.Pod).Match(in.Node); err != nil || !ok {
		return byNode(predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector"))
	}
	return nil
}

func name(in *Input) *Refusal {
	if n := in.Pod.Spec.NodeName; n != "" && n != in.Node.Name {
		return predicate("NodeName", "node(s) didn't match the requested node name")
	}
	return nil
}

// taints refuses a pod that the node would have to end at once. Static pods are the node's own.
func taints(in *Input) *Refusal {
	if IsStatic(in.Pod) {
		return nil
	}
	ends := func(t *v1.Taint) bool { return t.Effect == v1.TaintEffectNoExecute }
	_, untolerated := schedulinghelper.FindMatchingUntoleratedTaint(klog.Background(), in.Node.Spec.Taints,
		in.Pod.Spec.Tolerations, ends, false)
	if untolerated {
		return byNode(predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate"))
	}
	return nil
}

// ports refuses a pod with a host port that another pod has.
func ports(in *Input) *Refusal {
	taken := []v1.ContainerPort{}
	for _, other := range in.Others {
		taken = append(taken, hostPorts(other)...)
	}
	for _, want := range hostPorts(in.Pod) {
		if slices.ContainsFunc(taken, func(have v1.ContainerPort) bool { return conflict(want, have) }) {
			return predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
		}
	}
	return nil
}

// hostPorts lists the ports that a pod has on the host for as long as it runs.
func hostPorts(pod *v1.Pod) []v1.ContainerPort {
	var list []v1.ContainerPort
	add := func(c *v1.Container) {
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				list = append(list, p)
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return list
}

func conflict(a, b v1.ContainerPort) bool {
	protocol := func(p v1.ContainerPort) v1.Protocol {
		if p.Protocol == "" {
			return v1.ProtocolTCP
		}
		return p.Protocol
	}
	all := func(ip string) bool { return ip == "" || ip == "0.0.0.0" || ip == "::" }
	return a.HostPort == b.HostPort && protocol(a) == protocol(b) &&
		(a.HostIP == b.HostIP || all(a.HostIP) || all(b.HostIP))
}

package framework

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// NodeInfo is a node with the sums over its pods. It is not safe for concurrent change. The cache
// owns one set under its lock; a snapshot has another set, which only the scheduling loop changes
// between cycles.
type NodeInfo struct {
	node     *v1.Node
	features nodedeclaredfeatures.FeatureSet

	pods             []fwk.PodInfo
	withAffinity     []fwk.PodInfo
	withAntiAffinity []fwk.PodInfo

	ports       fwk.HostPortInfo
	requested   Resource
	nonZero     Resource
	allocatable Resource
	// images is replaced, never changed, so that clones share it.
	images     map[string]*fwk.ImageStateSummary
	claims     map[string]int
	generation int64
}

var _ fwk.NodeInfo = (*NodeInfo)(nil)

// NewNodeInfo returns a NodeInfo without a node: pods may be seen before their node is.
func NewNodeInfo() *NodeInfo {
	return &NodeInfo{ports: fwk.HostPortInfo{}, claims: map[string]int{}}
}

// Node returns the node, nil when only pods of it are known.
func (n *NodeInfo) Node() *v1.Node {
	if n == nil {
		return nil
	}
	return n.node
}

// GetPods returns the pods that occupy the node.
func (n *NodeInfo) GetPods() []fwk.PodInfo { return n.pods }

// GetPodsWithAffinity returns those with any pod affinity or anti-affinity term.
func (n *NodeInfo) GetPodsWithAffinity() []fwk.PodInfo { return n.withAffinity }

// GetPodsWithRequiredAntiAffinity returns those with a required anti-affinity term.
func (n *NodeInfo) GetPodsWithRequiredAntiAffinity() []fwk.PodInfo { return n.withAntiAffinity }

// GetPodsWithRequiredNonHostScopedAntiAffinity is empty: its fast path is not used.
func (n *NodeInfo) GetPodsWithRequiredNonHostScopedAntiAffinity() []fwk.PodInfo { return nil }

// GetUsedPorts returns the host ports in use.
func (n *NodeInfo) GetUsedPorts() fwk.HostPortInfo { return n.ports }

// GetRequested returns the sum of the pods' requests.
func (n *NodeInfo) GetRequested() fwk.Resource { return &n.requested }

// GetNonZeroRequested returns the sum with defaults for containers without requests.
func (n *NodeInfo) GetNonZeroRequested() fwk.Resource { return &n.nonZero }

// GetAllocatable returns the node's allocatable resources.
func (n *NodeInfo) GetAllocatable() fwk.Resource { return &n.allocatable }

// GetImageStates returns the images on the node by name. NumNodes is as of this node's last update.
func (n *NodeInfo) GetImageStates() map[string]*fwk.ImageStateSummary { return n.images }

// GetPVCRefCounts returns how many pods use each claim, by "namespace/name".
func (n *NodeInfo) GetPVCRefCounts() map[string]int { return n.claims }

// GetGeneration returns the owner's stamp of the last change.
func (n *NodeInfo) GetGeneration() int64 { return n.generation }

// SetGeneration stamps a change; for the owner of the NodeInfo.
func (n *NodeInfo) SetGeneration(g int64) { n.generation = g }

// GetNodeDeclaredFeatures returns the features that the node's status declares.
func (n *NodeInfo) GetNodeDeclaredFeatures() nodedeclaredfeatures.FeatureSet { return n.features }

// SetImageStates replaces the images. The map must not change afterwards.
func (n *NodeInfo) SetImageStates(images map[string]*fwk.ImageStateSummary) { n.images = images }

// SetNode replaces the node.
func (n *NodeInfo) SetNode(node *v1.Node) {
	n.node = node
	n.allocatable = *NewResource(node.Status.Allocatable)
}

// ForgetNode removes the node and keeps the pods.
func (n *NodeInfo) ForgetNode() { n.node, n.allocatable, n.images = nil, Resource{}, nil }

// AddPodInfo adds a pod to the sums.
func (n *NodeInfo) AddPodInfo(p fwk.PodInfo) {
	n.pods = append(n.pods, p)
	if hasAffinity(p) {
		n.withAffinity = append(n.withAffinity, p)
	}
	if len(p.GetRequiredAntiAffinityTerms()) > 0 {
		n.withAntiAffinity = append(n.withAntiAffinity, p)
	}
	n.count(p, 1)
}

// RemovePod removes a pod from the sums. It fails when the pod is not on the node.
func (n *NodeInfo) RemovePod(_ klog.Logger, pod *v1.Pod) error {
	i := indexOf(n.pods, pod)
	if i < 0 {
		return fmt.Errorf("pod %s/%s (%s) is not on node %q", pod.Namespace, pod.Name, pod.UID, n.name())
	}
	p := n.pods[i]
	n.pods = removeAt(n.pods, i)
	n.withAffinity = removeAt(n.withAffinity, indexOf(n.withAffinity, pod))
	n.withAntiAffinity = removeAt(n.withAntiAffinity, indexOf(n.withAntiAffinity, pod))
	n.count(p, -1)
	return nil
}

func (n *NodeInfo) count(p fwk.PodInfo, sign int64) {
	r := p.CalculateResource()
	n.requested.add(r.Resource, sign)
	n.nonZero.MilliCPU += sign * r.Non0CPU
	n.nonZero.Memory += sign * r.Non0Mem
	pod := p.GetPod()
	ForEachHostPort(pod, func(ip, protocol string, port int32) {
		if sign > 0 {
			n.ports.Add(ip, protocol, port)
		} else {
			n.ports.Remove(ip, protocol, port)
		}
	})
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		key := pod.Namespace + "/" + v.PersistentVolumeClaim.ClaimName
		if n.claims[key] += int(sign); n.claims[key] == 0 {
			delete(n.claims, key)
		}
	}
}

// Clone returns a copy that can be changed on its own.
func (n *NodeInfo) Clone() *NodeInfo {
	c := *n
	c.pods = slices.Clone(n.pods)
	c.withAffinity = slices.Clone(n.withAffinity)
	c.withAntiAffinity = slices.Clone(n.withAntiAffinity)
	c.ports = make(fwk.HostPortInfo, len(n.ports))
	for ip, ports := range n.ports {
		c.ports[ip] = maps.Clone(ports)
	}
	c.requested = n.requested.clone()
	c.nonZero = n.nonZero.clone()
	c.claims = maps.Clone(n.claims)
	return &c
}

// Snapshot is Clone, for the public interface.
func (n *NodeInfo) Snapshot() fwk.NodeInfo { return n.Clone() }

func (n *NodeInfo) name() string {
	if n.node == nil {
		return ""
	}
	return n.node.Name
}

// String names the node and counts its pods.
func (n *NodeInfo) String() string {
	return fmt.Sprintf("node %q with %d pods, generation %d", n.name(), len(n.pods), n.generation)
}

// ForEachHostPort calls fn for each host port of the pod. Sidecars (init containers that restart
// always) have theirs as long as the pod runs.
func ForEachHostPort(pod *v1.Pod, fn func(ip, protocol string, port int32)) {
	visit := func(c *v1.Container) {
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				fn(p.HostIP, string(p.Protocol), p.HostPort)
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil &&
			*c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			visit(c)
		}
	}
	for i := range pod.Spec.Containers {
		visit(&pod.Spec.Containers[i])
	}
}

func hasAffinity(p fwk.PodInfo) bool {
	if own, ok := p.(*PodInfo); ok {
		return own.hasAffinity()
	}
	return len(p.GetRequiredAffinityTerms())+len(p.GetRequiredAntiAffinityTerms())+
		len(p.GetPreferredAffinityTerms())+len(p.GetPreferredAntiAffinityTerms()) > 0
}

func indexOf(pods []fwk.PodInfo, pod *v1.Pod) int {
	return slices.IndexFunc(pods, func(p fwk.PodInfo) bool { return p.GetPod().UID == pod.UID })
}

// removeAt removes without keeping order; i < 0 removes nothing.
func removeAt(pods []fwk.PodInfo, i int) []fwk.PodInfo {
	if i < 0 {
		return pods
	}
	last := len(pods) - 1
	pods[i] = pods[last]
	pods[last] = nil
	return pods[:last]
}

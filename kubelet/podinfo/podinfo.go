// Package podinfo reads pods: their fields by the paths of the downward API, for environment
// variables and for volumes alike, their containers, and the conditions that are the node's.
package podinfo

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Field returns the value at a field path of the downward API, such as metadata.name or
// metadata.labels['app'].
func Field(pod *v1.Pod, path string) (string, error) {
	if name, key, ok := subscript(path); ok {
		switch name {
		case "metadata.labels":
			return pod.Labels[key], nil
		case "metadata.annotations":
			return pod.Annotations[key], nil
		}
		return "", fmt.Errorf("field path %q: %s takes no key", path, name)
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return lines(pod.Labels), nil
	case "metadata.annotations":
		return lines(pod.Annotations), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return pod.Status.HostIP, nil
	case "status.hostIPs":
		var ips []string
		for _, ip := range pod.Status.HostIPs {
			ips = append(ips, ip.IP)
		}
		return strings.Join(ips, ","), nil
	case "status.podIP":
		return pod.Status.PodIP, nil
	case "status.podIPs":
		var ips []string
		for _, ip := range pod.Status.PodIPs {
			ips = append(ips, ip.IP)
		}
		return strings.Join(ips, ","), nil
	}
	return "", fmt.Errorf("field path %q is not one that the downward API offers", path)
}

// subscript splits metadata.labels['key'].
func subscript(path string) (name, key string, ok bool) {
	name, rest, found := strings.Cut(path, "['")
	if !found {
		return "", "", false
	}
	key, found = strings.CutSuffix(rest, "']")
	return name, key, found
}

// lines writes a map as key="value" lines in the order of the keys.
func lines(m map[string]string) string {
	var b strings.Builder
	for i, key := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(key + "=" + strconv.Quote(m[key]))
	}
	return b.String()
}

// Limit returns a container's limit of a resource, or else that of its pod as a whole (KEP-2837).
// It is zero when neither sets one.
func Limit(pod *v1.Pod, c *v1.Container, name v1.ResourceName) resource.Quantity {
	if q := c.Resources.Limits[name]; !q.IsZero() {
		return q
	}
	if pod.Spec.Resources == nil || !resourcehelper.IsSupportedPodLevelResource(name) {
		return resource.Quantity{}
	}
	return pod.Spec.Resources.Limits[name]
}

// Resource returns a request or limit of a container, rounded up to whole divisors. A limit that
// neither the container nor its pod sets is the node's allocatable amount.
func Resource(
	pod *v1.Pod, ref *v1.ResourceFieldSelector, container string, allocatable v1.ResourceList,
) (string, error) {
	c := find(pod, container)
	if c == nil {
		return "", fmt.Errorf("resource %q: the pod has no container %q", ref.Resource, container)
	}
	kind, name, _ := strings.Cut(ref.Resource, ".")
	var value resource.Quantity
	switch kind {
	case "requests":
		value = c.Resources.Requests[v1.ResourceName(name)]
	case "limits":
		value = Limit(pod, c, v1.ResourceName(name))
		if value.IsZero() {
			value = allocatable[v1.ResourceName(name)]
		}
	default:
		return "", fmt.Errorf("resource %q: want requests.<name> or limits.<name>", ref.Resource)
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if name == string(v1.ResourceCPU) {
		return strconv.FormatInt(int64(math.Ceil(float64(value.MilliValue())/float64(divisor.MilliValue()))), 10), nil
	}
	return strconv.FormatInt(int64(math.Ceil(float64(value.Value())/float64(divisor.Value()))), 10), nil
}

func find(pod *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// NodeSays reports whether this node has set a condition: one that it decides, or the end of the
// pod for the node's own sake.
func NodeSays(c *v1.PodCondition) bool {
	return NodeDecides(c.Type) || c.Type == v1.DisruptionTarget && c.Reason == v1.PodReasonTerminationByKubelet
}

// NodeDecides reports whether the kubelet decides a condition of a pod. All others belong to other
// writers and are left alone.
func NodeDecides(kind v1.PodConditionType) bool {
	switch kind {
	case v1.PodReady, v1.ContainersReady, v1.PodInitialized, v1.PodScheduled, v1.PodReadyToStartContainers,
		v1.PodResizePending, v1.PodResizeInProgress, v1.AllContainersRestarting:
		return true
	}
	return false
}

// Containers returns the init containers of a pod and then its regular ones.
func Containers(pod *v1.Pod) []*v1.Container {
	var list []*v1.Container
	for i := range pod.Spec.InitContainers {
		list = append(list, &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		list = append(list, &pod.Spec.Containers[i])
	}
	return list
}

// Finished reports whether a pod in this phase is over for good.
func Finished(phase v1.PodPhase) bool { return phase == v1.PodSucceeded || phase == v1.PodFailed }

// Condition returns a condition of a status, or nil.
func Condition(s *v1.PodStatus, kind v1.PodConditionType) *v1.PodCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			return &s.Conditions[i]
		}
	}
	return nil
}

// GracePeriod returns the grace period of a pod by its spec, in seconds.
func GracePeriod(pod *v1.Pod) int64 {
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		return *pod.Spec.TerminationGracePeriodSeconds
	}
	return v1.DefaultTerminationGracePeriodSeconds
}

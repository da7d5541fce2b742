package hpa

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelpers "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"
)

// requestsOf returns each pod's request of a resource, or that of one container of each, in
// thousandths. Each container must have a request: otherwise a utilization is not defined. The
// error names the first pod by name, so that it is the same each time.
func requestsOf(pods []*corev1.Pod, container string, name corev1.ResourceName) (map[string]int64, error) {
	requests := make(map[string]int64, len(pods))
	byName := func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) }
	for _, pod := range slices.SortedFunc(slices.Values(pods), byName) {
		request, err := requestOf(pod, container, name)
		if err != nil {
			return nil, err
		}
		requests[pod.Name] = request
	}
	return requests, nil
}

func requestOf(pod *corev1.Pod, container string, name corev1.ResourceName) (int64, error) {
	if container == "" && resourcehelpers.IsPodLevelRequestsSet(pod) {
		whole, ok := resourcehelpers.PodRequests(pod, resourcehelpers.PodResourcesOptions{})[name]
		if !ok {
			return 0, fmt.Errorf("missing pod-level request for %s in Pod %s", name, pod.Name)
		}
		return whole.MilliValue(), nil
	}
	var sum int64
	found := false
	for _, c := range running(pod) {
		if container != "" && container != c.Name {
			continue
		}
		request, ok := c.Resources.Requests[name]
		if !ok {
			return 0, fmt.Errorf("missing request for %s in container %s of Pod %s", name, c.Name, pod.Name)
		}
		sum, found = sum+request.MilliValue(), true
	}
	if container != "" && !found {
		return 0, fmt.Errorf("container %s not found in Pod %s", container, pod.Name)
	}
	return sum, nil
}

// running returns the containers that run as long as the pod does.
func running(pod *corev1.Pod) []corev1.Container {
	containers := append([]corev1.Container(nil), pod.Spec.Containers...)
	for _, c := range pod.Spec.InitContainers {
		if ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			containers = append(containers, c)
		}
	}
	return containers
}

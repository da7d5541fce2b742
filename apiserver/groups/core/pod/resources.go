package pod

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// defaultPodResources completes the resources of a pod as a whole from those of its containers,
// once admission has added the last of them (KEP-2837). A pod that has none as a whole gets none.
func defaultPodResources(p *corev1.Pod) {
	r := p.Spec.Resources
	if r == nil || len(r.Requests)+len(r.Limits) == 0 {
		return
	}
	var of resourcehelper.PodResourcesOptions
	for name, limit := range resourcehelper.AggregateContainerLimits(p, of) {
		// Huge pages are completed by limits, other resources by requests.
		if _, requested := r.Requests[name]; isHugePages(name) && resourcehelper.IsSupportedPodLevelResource(name) &&
			!requested {
			setAmount(&r.Limits, name, limit)
		}
	}
	for name, request := range resourcehelper.AggregateContainerRequests(p, of) {
		if resourcehelper.IsSupportedPodLevelResource(name) && !isHugePages(name) {
			setAmount(&r.Requests, name, request)
		}
	}
	for name, limit := range r.Limits {
		if resourcehelper.IsSupportedPodLevelResource(name) {
			setAmount(&r.Requests, name, limit)
		}
	}
	limits := resourcehelper.AggregateContainerLimits(p, of)
	for name, request := range r.Requests {
		limit, some := limits[name]
		if !some || !resourcehelper.IsSupportedPodLevelResource(name) || !allLimited(&p.Spec, name) {
			continue
		}
		if request.Cmp(limit) > 0 {
			limit = request
		}
		setAmount(&r.Limits, name, limit)
	}
}

func isHugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// allLimited reports whether each container has a limit of its own for a resource.
func allLimited(spec *corev1.PodSpec, name corev1.ResourceName) bool {
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			if _, limited := containers[i].Resources.Limits[name]; !limited {
				return false
			}
		}
	}
	return true
}

// setAmount sets an amount that is not set yet.
func setAmount(list *corev1.ResourceList, name corev1.ResourceName, amount resource.Quantity) {
	if _, set := (*list)[name]; set {
		return
	}
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	(*list)[name] = amount.DeepCopy()
}

package podtemplate

import (
	corev1 "k8s.io/api/core/v1"
)

// QOSClass returns the quality of service of a pod: Guaranteed when every container limits both CPU
// and memory and requests as much, BestEffort when none requests or limits either, Burstable
// otherwise. Ephemeral containers do not count. Resources set for the pod as a whole decide alone.
func QOSClass(spec *corev1.PodSpec) corev1.PodQOSClass {
	if r := spec.Resources; r != nil && len(r.Requests)+len(r.Limits) > 0 {
		return class([]corev1.ResourceRequirements{*r})
	}
	var all []corev1.ResourceRequirements
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			all = append(all, containers[i].Resources)
		}
	}
	return class(all)
}

func class(all []corev1.ResourceRequirements) corev1.PodQOSClass {
	asked, guaranteed := false, true
	for _, r := range all {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			limit, request := r.Limits[name], r.Requests[name]
			if !limit.IsZero() || !request.IsZero() {
				asked = true
			}
			// A request that is not set is as large as the limit.
			if _, set := r.Requests[name]; !set {
				request = limit
			}
			if limit.IsZero() || limit.Cmp(request) != 0 {
				guaranteed = false
			}
		}
	}
	switch {
	case !asked:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

package quota

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apiserver/pkg/admission"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
)

var deviceClaims = resourcev1.SchemeGroupVersion.WithResource("resourceclaims")

// newDeviceClaims counts claims of devices, and the devices of each class that they may get.
func newDeviceClaims(
	list quotav1.ListerForResourceFunc, devices *Devices, now func() time.Time,
) *evaluator[resourcev1.ResourceClaim] {
	return &evaluator[resourcev1.ResourceClaim]{
		resource: deviceClaims, list: list, handles: handlesDeviceClaim,
		names: func(names []corev1.ResourceName) []corev1.ResourceName { return deviceClaimNames(names, devices) },
		usage: func(c *resourcev1.ResourceClaim) corev1.ResourceList {
			usage := deviceClaimUsage(c)
			devices.add(usage, c, now())
			return usage
		},
	}
}

func handlesDeviceClaim(a admission.Attributes) bool {
	return a.GetSubresource() == "" && (a.GetOperation() == admission.Create || a.GetOperation() == admission.Update)
}

func deviceClaimNames(names []corev1.ResourceName, devices *Devices) []corev1.ResourceName {
	var matching []corev1.ResourceName
	for _, name := range names {
		if name == countName(deviceClaims) || strings.HasSuffix(string(name), corev1.ResourceClaimsPerClass) ||
			devices.counts(name) {
			matching = append(matching, name)
		}
	}
	return matching
}

func deviceClaimUsage(c *resourcev1.ResourceClaim) corev1.ResourceList {
	usage := corev1.ResourceList{countName(deviceClaims): count(1)}
	for _, r := range c.Spec.Devices.Requests {
		most := map[string]int64{} // of each class: one of the alternatives is taken
		if r.Exactly != nil {
			most[r.Exactly.DeviceClassName] = atMost(r.Exactly.AllocationMode, r.Exactly.Count)
		}
		for _, alternative := range r.FirstAvailable {
			class := alternative.DeviceClassName
			most[class] = max(most[class], atMost(alternative.AllocationMode, alternative.Count))
		}
		for class, n := range most {
			name := corev1.ResourceName(class + corev1.ResourceClaimsPerClass)
			sum := usage[name]
			sum.Add(count(int(n)))
			usage[name] = sum
		}
	}
	return usage
}

// atMost is how many devices a request may get.
func atMost(mode resourcev1.DeviceAllocationMode, n int64) int64 {
	switch mode {
	case resourcev1.DeviceAllocationModeExactCount:
		return n
	case resourcev1.DeviceAllocationModeAll:
		return resourcev1.AllocationResultsMaxSize
	}
	return 0
}

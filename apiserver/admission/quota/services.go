package quota

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/utils/ptr"
)

var services = corev1.SchemeGroupVersion.WithResource("services")

func newServices(list quotav1.ListerForResourceFunc) *evaluator[corev1.Service] {
	return &evaluator[corev1.Service]{
		resource: services, list: list, usage: serviceUsage,
		handles: func(a admission.Attributes) bool {
			return a.GetSubresource() == "" &&
				(a.GetOperation() == admission.Create || a.GetOperation() == admission.Update)
		},
		names: func(names []corev1.ResourceName) []corev1.ResourceName {
			return quotav1.Intersection(names, []corev1.ResourceName{
				countName(services), corev1.ResourceServices, corev1.ResourceServicesNodePorts,
				corev1.ResourceServicesLoadBalancers,
			})
		},
	}
}

// serviceUsage counts the requested node ports of the service: they are not allocated yet.
func serviceUsage(s *corev1.Service) corev1.ResourceList {
	ports, balancers := 0, 0
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort:
		ports = len(s.Spec.Ports)
	case corev1.ServiceTypeLoadBalancer:
		balancers = 1
		wanted := s.Spec.Ports
		if !ptr.Deref(s.Spec.AllocateLoadBalancerNodePorts, true) {
			wanted = slices.DeleteFunc(slices.Clone(wanted), func(p corev1.ServicePort) bool { return p.NodePort == 0 })
		}
		ports = len(wanted)
	}
	return corev1.ResourceList{
		countName(services): count(1), corev1.ResourceServices: count(1),
		corev1.ResourceServicesNodePorts: count(ports), corev1.ResourceServicesLoadBalancers: count(balancers),
	}
}

package service

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// prepareService clears fields of an earlier type that an update still has. Addresses, families and
// node ports have been filled in before, by the allocator.
func prepareService(_ context.Context, s, old *corev1.Service) {
	// Services of this type may send it, and do not store it.
	if p := s.Spec.InternalTrafficPolicy; s.Spec.Type == corev1.ServiceTypeExternalName && p != nil &&
		(*p == corev1.ServiceInternalTrafficPolicyCluster || *p == corev1.ServiceInternalTrafficPolicyLocal) {
		s.Spec.InternalTrafficPolicy = nil
	}
	if old != nil {
		dropForeignFields(s, old)
	}
}

type portKey struct {
	protocol corev1.Protocol
	port     int32
}

func needsHealthCheck(spec *corev1.ServiceSpec) bool {
	return spec.Type == corev1.ServiceTypeLoadBalancer &&
		spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// dropForeignFields clears fields of the service's former type that an update still has, if the new
// type lacks them: a client that only changes the type means this. A value that differs from the
// stored one is the client's own, and is left for validation to refuse.
func dropForeignFields(s, old *corev1.Service) {
	spec, was := &s.Spec, &old.Spec
	if was.Type != corev1.ServiceTypeExternalName && spec.Type == corev1.ServiceTypeExternalName {
		dropAddresses(spec, was)
	}
	if hasNodePorts(was.Type) && !hasNodePorts(spec.Type) {
		dropNodePorts(spec, was)
	}
	if externallyAccessible(was) && !externallyAccessible(spec) &&
		spec.ExternalTrafficPolicy == was.ExternalTrafficPolicy {
		spec.ExternalTrafficPolicy = ""
	}
	if needsHealthCheck(was) && !needsHealthCheck(spec) && spec.HealthCheckNodePort == was.HealthCheckNodePort {
		spec.HealthCheckNodePort = 0
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		return
	}
	if was.Type == corev1.ServiceTypeLoadBalancer {
		if samePointer(spec.AllocateLoadBalancerNodePorts, was.AllocateLoadBalancerNodePorts) {
			spec.AllocateLoadBalancerNodePorts = nil
		}
		if samePointer(spec.LoadBalancerClass, was.LoadBalancerClass) {
			spec.LoadBalancerClass = nil
		}
	}
	s.Status.LoadBalancer = corev1.LoadBalancerStatus{}
}

func dropAddresses(spec, was *corev1.ServiceSpec) {
	if spec.ClusterIP == was.ClusterIP && slices.Equal(spec.ClusterIPs, was.ClusterIPs) {
		spec.ClusterIP, spec.ClusterIPs = "", nil
	}
	if slices.Equal(spec.IPFamilies, was.IPFamilies) {
		spec.IPFamilies = nil
	}
	if samePointer(spec.IPFamilyPolicy, was.IPFamilyPolicy) {
		spec.IPFamilyPolicy = nil
	}
}

func samePointer[T comparable](a, b *T) bool {
	return a == b || (a != nil && b != nil && *a == *b)
}

// dropNodePorts clears them if all are of the stored service.
func dropNodePorts(spec, was *corev1.ServiceSpec) {
	stored := map[int32]bool{0: true}
	for _, p := range was.Ports {
		stored[p.NodePort] = true
	}
	for _, p := range spec.Ports {
		if !stored[p.NodePort] {
			return
		}
	}
	for i := range spec.Ports {
		spec.Ports[i].NodePort = 0
	}
}

package core

import (
	"context"
	"net"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// prepareService brings the addresses, ports and families of a service into their one normal form,
// before the allocator gives it what it lacks.
func prepareService(_ context.Context, s, old *corev1.Service) {
	normalizeClusterIPs(&s.Spec, old)
	if old != nil {
		dropForeignFields(s, old)
		keepAllocated(&s.Spec, &old.Spec)
	}
	defaultFamilies(&s.Spec)
}

// keepAllocated gives an update what was allocated for the stored service and the update leaves
// out, so that clients that replace an object need not know what the server added.
func keepAllocated(spec, old *corev1.ServiceSpec) {
	if hasClusterIP(spec.Type) && hasClusterIP(old.Type) && spec.ClusterIP == "" && len(spec.ClusterIPs) == 0 {
		spec.ClusterIP = old.ClusterIP
		spec.ClusterIPs = old.ClusterIPs
	}
	if hasNodePorts(spec.Type) && hasNodePorts(old.Type) {
		keepNodePorts(spec, old)
	}
	if needsHealthCheck(spec) && needsHealthCheck(old) && spec.HealthCheckNodePort == 0 {
		spec.HealthCheckNodePort = old.HealthCheckNodePort
	}
}

type portKey struct {
	protocol corev1.Protocol
	port     int32
}

func keepNodePorts(spec, old *corev1.ServiceSpec) {
	allocated, taken := map[portKey]int32{}, map[int32]bool{}
	for _, p := range old.Ports {
		allocated[portKey{p.Protocol, p.Port}] = p.NodePort
	}
	for _, p := range spec.Ports {
		taken[p.NodePort] = true
	}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		if keep := allocated[portKey{p.Protocol, p.Port}]; p.NodePort == 0 && !taken[keep] {
			p.NodePort = keep
			taken[keep] = true
		}
	}
}

func needsHealthCheck(spec *corev1.ServiceSpec) bool {
	return spec.Type == corev1.ServiceTypeLoadBalancer && spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// dropForeignFields clears what an update still carries of the type that the service had, if the
// new type has no such thing: a client that only changes the type means this. A value that differs
// from the stored one is the client's own, and is left for validation to refuse.
func dropForeignFields(s, old *corev1.Service) {
	spec, was := &s.Spec, &old.Spec
	if hasClusterIP(was.Type) && !hasClusterIP(spec.Type) && spec.ClusterIP == was.ClusterIP {
		spec.ClusterIP, spec.ClusterIPs = "", nil
		spec.IPFamilies, spec.IPFamilyPolicy = nil, nil
	}
	if !hasClusterIP(spec.Type) && samePointer(spec.InternalTrafficPolicy, was.InternalTrafficPolicy) {
		spec.InternalTrafficPolicy = nil
	}
	if hasNodePorts(was.Type) && !hasNodePorts(spec.Type) {
		dropNodePorts(spec, was)
	}
	if !externallyAccessible(spec) && spec.ExternalTrafficPolicy == was.ExternalTrafficPolicy {
		spec.ExternalTrafficPolicy = ""
	}
	if needsHealthCheck(was) && !needsHealthCheck(spec) && spec.HealthCheckNodePort == was.HealthCheckNodePort {
		spec.HealthCheckNodePort = 0
	}
	if spec.Type != corev1.ServiceTypeLoadBalancer && was.Type == corev1.ServiceTypeLoadBalancer {
		if samePointer(spec.AllocateLoadBalancerNodePorts, was.AllocateLoadBalancerNodePorts) {
			spec.AllocateLoadBalancerNodePorts = nil
		}
		if samePointer(spec.LoadBalancerClass, was.LoadBalancerClass) {
			spec.LoadBalancerClass = nil
		}
		s.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	}
	if spec.Type != corev1.ServiceTypeExternalName && was.Type == corev1.ServiceTypeExternalName && spec.ExternalName == was.ExternalName {
		spec.ExternalName = ""
	}
}

func samePointer[T comparable](a, b *T) bool {
	return a == b || (a != nil && b != nil && *a == *b)
}

func dropNodePorts(spec, was *corev1.ServiceSpec) {
	stored := map[portKey]int32{}
	for _, p := range was.Ports {
		stored[portKey{p.Protocol, p.Port}] = p.NodePort
	}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		if p.NodePort == stored[portKey{p.Protocol, p.Port}] {
			p.NodePort = 0
		}
	}
}

// normalizeClusterIPs keeps clusterIP and the first of clusterIPs the same for clients that know
// only one of them: one that leaves clusterIPs out, or changed just clusterIP, means both.
func normalizeClusterIPs(spec *corev1.ServiceSpec, old *corev1.Service) {
	stale := old != nil && spec.ClusterIP != old.Spec.ClusterIP && slices.Equal(spec.ClusterIPs, old.Spec.ClusterIPs)
	if !stale && len(spec.ClusterIPs) > 0 {
		return
	}
	spec.ClusterIPs = nil
	if spec.ClusterIP != "" {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	if old != nil && spec.ClusterIP == old.Spec.ClusterIP {
		spec.ClusterIPs = slices.Clone(old.Spec.ClusterIPs)
	}
}

// defaultFamilies fills in the IP families of a service with an address: one, that of the address
// that the client asked for, otherwise IPv4, which is the family of the cluster.
func defaultFamilies(spec *corev1.ServiceSpec) {
	if !hasClusterIP(spec.Type) {
		return
	}
	if spec.IPFamilyPolicy == nil {
		policy := corev1.IPFamilyPolicySingleStack
		// A service without selector and address may have endpoints of both families.
		if spec.ClusterIP == corev1.ClusterIPNone && len(spec.Selector) == 0 && len(spec.IPFamilies) != 1 {
			policy = corev1.IPFamilyPolicyRequireDualStack
			spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		}
		spec.IPFamilyPolicy = &policy
	}
	if len(spec.IPFamilies) > 0 {
		return
	}
	family := corev1.IPv4Protocol
	if ip := net.ParseIP(spec.ClusterIP); ip != nil && ip.To4() == nil {
		family = corev1.IPv6Protocol
	}
	spec.IPFamilies = []corev1.IPFamily{family}
}

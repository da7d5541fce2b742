package allocator

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Owner is how a Service is named in its reservations.
func Owner(s *corev1.Service) string {
	return s.Namespace + "/" + s.Name + "/" + string(s.UID)
}

// OwnersOf says which of the Services has which address and which node port, for Repair.
func OwnersOf(services []corev1.Service) (Owners[netip.Addr], Owners[int32]) {
	addresses, ports := make(Owners[netip.Addr]), make(Owners[int32])
	for i := range services {
		s := &services[i]
		owner := Owner(s)
		for _, text := range append([]string{s.Spec.ClusterIP}, s.Spec.ClusterIPs...) {
			// "None" and "" are no addresses.
			if address, err := netip.ParseAddr(text); err == nil {
				addresses.add(address, owner)
			}
		}
		for _, port := range s.Spec.Ports {
			ports.add(port.NodePort, owner)
		}
		ports.add(s.Spec.HealthCheckNodePort, owner)
	}
	delete(ports, 0)
	return addresses, ports
}

func (o Owners[T]) add(value T, owner string) {
	if !slices.Contains(o[value], owner) {
		o[value] = append(o[value], owner)
	}
}

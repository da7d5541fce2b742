package apiendpoints

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

//lint:file-ignore SA1019 Endpoints are deprecated, and still read by clients that this is for.

const portName = "https"

// byPort groups the servers by family and port, each group sorted. The group of the first server in
// order comes first.
func byPort(servers []netip.AddrPort) [][]netip.AddrPort {
	sorted := make([]netip.AddrPort, len(servers))
	for i, s := range servers {
		sorted[i] = netip.AddrPortFrom(s.Addr().Unmap().WithZone(""), s.Port())
	}
	slices.SortFunc(sorted, netip.AddrPort.Compare)
	sorted = slices.Compact(sorted)
	var groups [][]netip.AddrPort
	for _, s := range sorted {
		i := slices.IndexFunc(groups, func(g []netip.AddrPort) bool {
			return g[0].Port() == s.Port() && g[0].Addr().Is4() == s.Addr().Is4()
		})
		if i < 0 {
			groups = append(groups, nil)
			i = len(groups) - 1
		}
		groups[i] = append(groups[i], s)
	}
	return groups
}

func endpointsOf(servers []netip.AddrPort) *corev1.Endpoints {
	e := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name,
		// The slices are written here too: they need no mirror.
		Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"},
	}}
	for _, g := range byPort(servers) {
		subset := corev1.EndpointSubset{
			Ports: []corev1.EndpointPort{{Name: portName, Port: int32(g[0].Port()), Protocol: corev1.ProtocolTCP}}}
		for _, s := range g {
			subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: s.Addr().String()})
		}
		e.Subsets = append(e.Subsets, subset)
	}
	return e
}

func slicesOf(servers []netip.AddrPort) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for i, g := range byPort(servers) {
		family, suffix := discoveryv1.AddressTypeIPv4, ""
		if g[0].Addr().Is6() {
			family = discoveryv1.AddressTypeIPv6
		}
		if i > 0 {
			suffix = fmt.Sprintf("-%d", g[0].Port())
			if family == discoveryv1.AddressTypeIPv6 {
				suffix += "-ipv6"
			}
		}
		port, protocol, portName, ready := int32(g[0].Port()), corev1.ProtocolTCP, portName, true
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: name + suffix,
				Labels: map[string]string{discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: managedBy},
			},
			AddressType: family,
			Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &protocol}},
		}
		for _, a := range g {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{a.Addr().String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			})
		}
		out = append(out, s)
	}
	return out
}

package routes

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// Kind is what a route does with packets.
type Kind string

const (
	// Via hands packets to another node.
	Via Kind = "via"
	// Unreachable answers at once that there is no such pod: the pods that exist
	// have routes of their own, which are more specific.
	Unreachable Kind = "unreachable"
	// Local keeps packets on this node's link and gives them this node's address;
	// for the service network, so that a node without a default route can start a
	// connection that the service proxy then leads on.
	Local Kind = "local"
)

// Route is one route of this node; it is comparable.
type Route struct {
	Destination netip.Prefix
	Kind        Kind
	// Gateway of a Via route.
	Gateway netip.Addr
}

// Plan returns the routes that this node needs, keyed by destination, and this
// node's own share of the pod network (not valid while it has none). It is pure.
func Plan(self string, serviceNetwork netip.Prefix, nodes []*corev1.Node) (routes map[netip.Prefix]Route, own netip.Prefix) {
	routes = map[netip.Prefix]Route{
		serviceNetwork: {Destination: serviceNetwork, Kind: Local},
	}
	for _, node := range nodes {
		if node.Name == self {
			own, _ = podCIDR(node)
		}
	}
	if own.IsValid() {
		routes[own] = Route{Destination: own, Kind: Unreachable}
	}
	for _, node := range nodes {
		if node.Name == self {
			continue
		}
		share, ok := podCIDR(node)
		gateway, known := internalIP(node)
		// A share that overlaps ours is a fault of whoever gave it out; our own
		// pods must not lose their routes to it.
		if !ok || !known || own.IsValid() && own.Overlaps(share) {
			continue
		}
		// Two nodes with one share: take the same one on every run.
		if rival, taken := routes[share]; taken && !gateway.Less(rival.Gateway) {
			continue
		}
		routes[share] = Route{Destination: share, Kind: Via, Gateway: gateway}
	}
	return routes, own
}

// podCIDR returns the node's IPv4 share of the pod network.
func podCIDR(node *corev1.Node) (netip.Prefix, bool) {
	for _, raw := range append([]string{node.Spec.PodCIDR}, node.Spec.PodCIDRs...) {
		if prefix, err := netip.ParsePrefix(raw); err == nil && prefix.Addr().Is4() {
			return prefix.Masked(), true
		}
	}
	return netip.Prefix{}, false
}

func internalIP(node *corev1.Node) (netip.Addr, bool) {
	for _, address := range node.Status.Addresses {
		if address.Type != corev1.NodeInternalIP {
			continue
		}
		if addr, err := netip.ParseAddr(address.Address); err == nil && addr.Is4() {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

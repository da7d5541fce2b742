package balancers

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// GatewayNodes is the label of the Nodes whose gateway is on.
const GatewayNodes = "barque.io/gateway"

// toBeDeleted is the taint of nodes that the cluster autoscaler is about to delete.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

// TakesTraffic reports whether clients outside of the cluster may be sent to a node, by upstream's
// rules, once it is ready.
func TakesTraffic(n *corev1.Node) bool {
	if text, labelled := n.Labels[corev1.LabelNodeExcludeBalancers]; labelled {
		if excluded, err := strconv.ParseBool(text); err != nil || excluded {
			return false
		}
	}
	going := func(t corev1.Taint) bool { return t.Key == toBeDeleted }
	return n.DeletionTimestamp == nil && !slices.ContainsFunc(n.Spec.Taints, going)
}

// Eligible reports whether clients outside of the cluster may be sent to a node now.
func Eligible(n *corev1.Node) bool { return TakesTraffic(n) && Ready(n) }

// Ready reports whether a node is.
func Ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// HasGateway reports whether the gateway of a node is on.
func HasGateway(n *corev1.Node) bool {
	_, on := n.Labels[GatewayNodes]
	return on
}

// AddressesOf are the addresses of a node for clients outside: its external ones of a family, where
// it has such, and its internal ones otherwise.
func AddressesOf(n *corev1.Node, family corev1.IPFamily) []netip.Addr {
	for _, typ := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeInternalIP} {
		var out []netip.Addr
		for _, a := range n.Status.Addresses {
			address, err := netip.ParseAddr(a.Address)
			if a.Type == typ && err == nil && FamilyOf(address) == family {
				out = append(out, address)
			}
		}
		if len(out) > 0 {
			return out
		}
	}
	return nil
}

// SameForClients reports whether two states of a Node, which may be nil, agree on whether clients
// reach the node, and where. Nodes report their state all the time.
func SameForClients(a, b *corev1.Node) bool {
	if a == nil || b == nil {
		return a == b
	}
	return Eligible(a) == Eligible(b) && TakesTraffic(a) == TakesTraffic(b) && HasGateway(a) == HasGateway(b) &&
		slices.Equal(a.Status.Addresses, b.Status.Addresses)
}

// WithEndpoints are the nodes that have a ready endpoint.
func WithEndpoints(all ...*discoveryv1.EndpointSlice) map[string]bool {
	out := map[string]bool{}
	for _, slice := range all {
		if slice == nil || slice.DeletionTimestamp != nil {
			continue
		}
		for _, e := range slice.Endpoints {
			if ptr.Deref(e.Conditions.Ready, true) && e.NodeName != nil {
				out[*e.NodeName] = true
			}
		}
	}
	return out
}

// HasReady reports whether a slice has a ready endpoint.
func HasReady(slice *discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(slice.Endpoints,
		func(e discoveryv1.Endpoint) bool { return ptr.Deref(e.Conditions.Ready, true) })
}

// SameNodes reports whether two states of a slice, which may be nil, have ready endpoints of one
// Service on the same nodes.
func SameNodes(a, b *discoveryv1.EndpointSlice) bool {
	if a != nil && b != nil && a.Labels[discoveryv1.LabelServiceName] != b.Labels[discoveryv1.LabelServiceName] {
		return false
	}
	return maps.Equal(WithEndpoints(a), WithEndpoints(b))
}

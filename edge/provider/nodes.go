package provider

import (
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/edge/pool"
	"github.com/barque/barque/internal/balancers"
)

// toBeDeleted is the taint of nodes that the cluster autoscaler is about to delete.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

// takesTraffic reports whether clients outside of the cluster may be sent to a node, by upstream's
// rules.
func takesTraffic(n *corev1.Node) bool {
	if text, labelled := n.Labels[corev1.LabelNodeExcludeBalancers]; labelled {
		if excluded, err := strconv.ParseBool(text); err != nil || excluded {
			return false
		}
	}
	going := func(t corev1.Taint) bool { return t.Key == toBeDeleted }
	return n.DeletionTimestamp == nil && !slices.ContainsFunc(n.Spec.Taints, going)
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// addressesOf are the addresses of a node for clients outside: its external ones of a family, where
// it has such, and its internal ones otherwise.
func addressesOf(n *corev1.Node, family corev1.IPFamily) []netip.Addr {
	for _, typ := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeInternalIP} {
		var out []netip.Addr
		for _, a := range n.Status.Addresses {
			address, err := netip.ParseAddr(a.Address)
			if a.Type == typ && err == nil && balancers.FamilyOf(address) == family {
				out = append(out, address)
			}
		}
		if len(out) > 0 {
			return out
		}
	}
	return nil
}

// nodeAddresses are the addresses at which nodes lead clients to a Service, of its first family
// first. ofService are its slices.
//
// Nodes that are not ready are left out, and with the policy Local nodes without a ready endpoint.
// Where that leaves none, the addresses that the Service has stay, as far as they are still those
// of nodes: they are no worse than none, and nobody else gets the ports meanwhile.
func nodeAddresses(s *corev1.Service, nodes []*corev1.Node, ofService []*discoveryv1.EndpointSlice) []netip.Addr {
	local := s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	endpoints := withEndpoints(ofService)
	var best, possible []netip.Addr
	for _, family := range balancers.Families(s) {
		var good, every []netip.Addr
		for _, n := range nodes {
			if !takesTraffic(n) {
				continue
			}
			addresses := addressesOf(n, family)
			every = append(every, addresses...)
			if isReady(n) && (!local || endpoints[n.Name]) {
				good = append(good, addresses...)
			}
		}
		best, possible = append(best, ordered(good)...), append(possible, ordered(every)...)
	}
	if len(best) > 0 {
		return best
	}
	if balancers.ConditionOf(s) != balancers.NodesCondition {
		return nil
	}
	held := balancers.HeldBy(s)
	return slices.DeleteFunc(possible, func(a netip.Addr) bool {
		return !slices.ContainsFunc(held, func(h balancers.Held) bool { return h.Address == a })
	})
}

func ordered(addresses []netip.Addr) []netip.Addr {
	slices.SortFunc(addresses, netip.Addr.Compare)
	return slices.Compact(addresses)
}

// withEndpoints are the nodes that have a ready endpoint.
func withEndpoints(all []*discoveryv1.EndpointSlice) map[string]bool {
	out := map[string]bool{}
	for _, slice := range all {
		for _, e := range slice.Endpoints {
			if ptr.Deref(e.Conditions.Ready, true) && e.NodeName != nil {
				out[*e.NodeName] = true
			}
		}
	}
	return out
}

// nodePorts are the ports that a Service may have at the nodes' addresses. If one of them is in
// use, a new Service gets none: half a Service would look like a whole one. A Service that has
// some keeps those.
func nodePorts(s *corev1.Service, all []*corev1.Service, inUse func(balancers.Port) string) ([]balancers.Port, error) {
	wanted, holders := balancers.Wanted(s), map[balancers.Port]string{}
	for _, other := range all {
		same := other.Namespace == s.Namespace && other.Name == s.Name
		if same || balancers.ConditionOf(other) != balancers.NodesCondition {
			continue
		}
		for _, held := range balancers.HeldBy(other) {
			for _, port := range held.Ports {
				holders[port] = "the Service " + other.Namespace + "/" + other.Name
			}
		}
	}
	var kept []balancers.Port
	if balancers.ConditionOf(s) == balancers.NodesCondition {
		for _, held := range balancers.HeldBy(s) {
			kept = append(kept, held.Ports...)
		}
	}
	var refused error
	var free []balancers.Port
	for _, port := range wanted {
		by := holders[port]
		if by == "" {
			by = inUse(port)
		}
		switch {
		case by == "":
			free = append(free, port)
		case refused == nil:
			refused = pool.Refuse(pool.PortInUse, "the port %s of the nodes is in use by %s; "+
				"use another port, or make an AddressPool: then the Service gets an address of its own", port, by)
		}
	}
	if refused == nil {
		return free, nil
	}
	return slices.DeleteFunc(free, func(p balancers.Port) bool { return !slices.Contains(kept, p) }), refused
}

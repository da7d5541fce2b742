package provider

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/barque/barque/edge/pool"
	"github.com/barque/barque/internal/balancers"
)

// mostAddresses bounds the nodes' addresses in a status, of each family. A status with all of a
// thousand nodes would be written anew, for each Service, whenever one of them comes or goes.
const mostAddresses = 64

// nodeAddresses are the addresses at which nodes lead clients to a Service, of its first family
// first, and at most mostAddresses of each. ofService are its slices. The addresses that the
// Service has stay while they may.
//
// Nodes that are not ready are left out, and with the policy Local nodes without a ready endpoint.
// Where that leaves none, the addresses that the Service has stay, as far as they are still those
// of nodes: they are no worse than none, and nobody else gets the ports meanwhile.
func nodeAddresses(s *corev1.Service, nodes []*corev1.Node, ofService []*discoveryv1.EndpointSlice) []netip.Addr {
	local := s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	endpoints := balancers.WithEndpoints(ofService...)
	has := map[netip.Addr]bool{}
	if balancers.ConditionOf(s) == balancers.NodesCondition {
		for _, h := range balancers.HeldBy(s) {
			has[h.Address] = true
		}
	}
	var best, possible []netip.Addr
	for _, family := range balancers.Families(s) {
		var good, every []netip.Addr
		for _, n := range nodes {
			if !balancers.TakesTraffic(n) {
				continue
			}
			addresses := balancers.AddressesOf(n, family)
			every = append(every, addresses...)
			if balancers.Eligible(n) && (!local || endpoints[n.Name]) {
				good = append(good, addresses...)
			}
		}
		every = slices.DeleteFunc(every, func(a netip.Addr) bool { return !has[a] })
		best, possible = append(best, chosen(good, has)...), append(possible, chosen(every, has)...)
	}
	if len(best) > 0 {
		return best
	}
	return possible
}

// chosen are at most mostAddresses of these, in order: those that the Service has before others.
func chosen(addresses []netip.Addr, has map[netip.Addr]bool) []netip.Addr {
	slices.SortFunc(addresses, netip.Addr.Compare)
	addresses = slices.Compact(addresses)
	if len(addresses) <= mostAddresses {
		return addresses
	}
	slices.SortStableFunc(addresses, func(a, b netip.Addr) int {
		switch {
		case has[a] == has[b]:
			return 0
		case has[a]:
			return -1
		}
		return 1
	})
	addresses = addresses[:mostAddresses]
	slices.SortFunc(addresses, netip.Addr.Compare)
	return addresses
}

// nodePorts are the ports that a Service may have at the nodes' addresses. If one of them is in
// use, a new Service gets none: half a Service would look like a whole one. A Service that has
// some keeps those.
func nodePorts(
	s *corev1.Service, all []*corev1.Service, inUse func(port balancers.Port, has bool) string,
) ([]balancers.Port, error) {
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
			by = inUse(port, slices.Contains(kept, port))
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

// Package balancers has the names and the reading of Services of type LoadBalancer that the
// provider of addresses, the API server and the nodes share. It decides nothing.
//
// The status of a Service says all of it. One of two conditions says that Barque has given the
// addresses, and which kind they are. Each address of the status lists the ports that belong to the
// Service there. Users do not write a status, so no change of a manifest makes an address look as
// if another load balancer had given it.
package balancers

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	// ClassPool and ClassNodes are the classes of load balancers that Barque serves: addresses of
	// pools, and the addresses of the nodes.
	ClassPool  = "barque.io/pool"
	ClassNodes = "barque.io/node"

	// AddressesAnnotation requests addresses of a Service, at most one of each family.
	AddressesAnnotation = "barque.io/load-balancer-ips"
	// PoolAnnotation names the pools that a Service's addresses may come from.
	PoolAnnotation = "barque.io/address-pool"
	// ShareAnnotation is the key that Services with a common address have in common.
	ShareAnnotation = "barque.io/allow-shared-ip"

	// ProxyLabel names the proxy that implements a Service in place of the nodes' service proxy.
	// GatewayProxy is the gateway of the nodes: its Services have the addresses of a Gateway.
	ProxyLabel   = "service.kubernetes.io/service-proxy-name"
	GatewayProxy = "barque-gateway"

	// PoolCondition is on a Service with addresses of pools, or one that waits for them. Some node
	// has to answer for these addresses.
	PoolCondition = "barque.io/PoolAddress"
	// NodesCondition is on a Service with the addresses of nodes, or one that waits for them.
	NodesCondition = "barque.io/NodeAddress"
)

// Port is a port of a Service at an address outside of the cluster.
type Port struct {
	Protocol corev1.Protocol
	Port     int32
}

// String is the port as kubectl shows it, such as 80/TCP.
func (p Port) String() string { return strconv.Itoa(int(p.Port)) + "/" + string(p.Protocol) }

// ComparePorts orders ports by number, then by protocol.
func ComparePorts(a, b Port) int {
	return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
}

// ConditionOf returns PoolCondition or NodesCondition, for a Service that Barque serves, and "" for
// all others.
func ConditionOf(s *corev1.Service) string {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return ""
	}
	for _, t := range []string{PoolCondition, NodesCondition} {
		if meta.FindStatusCondition(s.Status.Conditions, t) != nil {
			return t
		}
	}
	return ""
}

// OfGateway reports whether the gateway of the nodes serves a Service's addresses.
func OfGateway(s *corev1.Service) bool { return s.Labels[ProxyLabel] == GatewayProxy }

// Wanted lists the ports of a Service, in order.
func Wanted(s *corev1.Service) []Port {
	var out []Port
	for _, p := range s.Spec.Ports {
		out = append(out, Port{cmp.Or(p.Protocol, corev1.ProtocolTCP), p.Port})
	}
	slices.SortFunc(out, ComparePorts)
	return slices.Compact(out)
}

// Held is an address that the status of a Service has, with the ports that the Service has there.
type Held struct {
	Address netip.Addr
	Ports   []Port
}

// Equal reports whether both are the same.
func (h Held) Equal(o Held) bool { return h.Address == o.Address && slices.Equal(h.Ports, o.Ports) }

// HeldBy lists the addresses in the status of a Service, whoever has given them. An entry without
// ports stands for all ports of the Service, as upstream defines it.
func HeldBy(s *corev1.Service) []Held {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	var out []Held
	for _, in := range s.Status.LoadBalancer.Ingress {
		address, err := netip.ParseAddr(in.IP)
		if err != nil {
			continue // a name
		}
		held := Held{Address: address.Unmap(), Ports: portsOf(in)}
		if len(in.Ports) == 0 {
			held.Ports = Wanted(s)
		}
		out = append(out, held)
	}
	return out
}

func portsOf(in corev1.LoadBalancerIngress) []Port {
	var out []Port
	for _, p := range in.Ports {
		if p.Error == nil {
			out = append(out, Port{cmp.Or(p.Protocol, corev1.ProtocolTCP), p.Port})
		}
	}
	slices.SortFunc(out, ComparePorts)
	return slices.Compact(out)
}

// Leads reports whether packets to a port at an address of the status belong to the Service. If
// Barque has given the address, only listed ports do: others may be another Service's.
func Leads(s *corev1.Service, in corev1.LoadBalancerIngress, port Port) bool {
	return ConditionOf(s) == "" || slices.Contains(portsOf(in), port)
}

// Ingress is the entry of a status for an address. Nodes catch packets to it: IPMode VIP.
func Ingress(address netip.Addr, ports []Port) corev1.LoadBalancerIngress {
	mode := corev1.LoadBalancerIPModeVIP
	in := corev1.LoadBalancerIngress{IP: address.String(), IPMode: &mode}
	for _, p := range ports {
		in.Ports = append(in.Ports, corev1.PortStatus{Port: p.Port, Protocol: p.Protocol})
	}
	return in
}

// ShareKey is equal for Services that may have an address in common, and "" for a Service that
// shares none. With the policy Local all traffic of an address goes to one node, so the Services
// must have the same pods.
func ShareKey(s *corev1.Service) string {
	key := s.Annotations[ShareAnnotation]
	switch {
	case key == "":
		return ""
	case s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal:
		return "Cluster " + key
	case len(s.Spec.Selector) == 0:
		return "" // nobody knows its pods
	}
	return "Local " + key + " " + labels.Set(s.Spec.Selector).String()
}

// Families lists the families of a Service, the first one first.
func Families(s *corev1.Service) []corev1.IPFamily {
	if len(s.Spec.IPFamilies) > 0 {
		return s.Spec.IPFamilies
	}
	if strings.Contains(s.Spec.ClusterIP, ":") {
		return []corev1.IPFamily{corev1.IPv6Protocol}
	}
	return []corev1.IPFamily{corev1.IPv4Protocol}
}

// FamilyOf is the family of an address.
func FamilyOf(a netip.Addr) corev1.IPFamily {
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

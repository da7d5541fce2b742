// Package services reads from the cluster's Services which addresses nodes are to answer for, and
// which nodes may: the demands of package hold. It chooses no address and no node.
package services

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/edge/hold"
	"github.com/barque/barque/internal/balancers"
)

// Source reads the demands of Services. All fields are needed.
type Source struct {
	Services corelisters.ServiceLister
	Slices   discoverylisters.EndpointSliceLister
	Nodes    corelisters.NodeLister
	// ByARP reports whether one node is to answer for an address. Others are announced by BGP.
	ByARP func(netip.Addr) bool
}

// Demand is an address with the Services that have it.
type Demand struct {
	hold.Demand
	Services []*corev1.Service // several share it
}

// Demands returns the addresses, in order.
func (s *Source) Demands() ([]Demand, error) {
	services, err := s.Services.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	nodes, err := s.Nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	return demands(services, nodes, s.ByARP, func(of *corev1.Service) ([]*discoveryv1.EndpointSlice, error) {
		return s.Slices.EndpointSlices(of.Namespace).List(
			labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: of.Name}))
	})
}

func demands(
	services []*corev1.Service, nodes []*corev1.Node, byARP func(netip.Addr) bool,
	slicesOf func(*corev1.Service) ([]*discoveryv1.EndpointSlice, error),
) ([]Demand, error) {
	var every, able, gateways []string
	for _, n := range nodes {
		every = append(every, n.Name)
		if balancers.Eligible(n) {
			able = append(able, n.Name)
			if balancers.HasGateway(n) {
				gateways = append(gateways, n.Name)
			}
		}
	}
	own := OfNodes(nodes)
	found := map[netip.Addr]*Demand{}
	for _, service := range services {
		addrs := slices.DeleteFunc(Addresses(service), func(a netip.Addr) bool { return own[a] || !byARP(a) })
		if len(addrs) == 0 {
			continue
		}
		may := able
		if balancers.OfGateway(service) {
			may = gateways
		}
		if service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
			all, err := slicesOf(service)
			if err != nil {
				return nil, err
			}
			here := balancers.WithEndpoints(all...)
			may = slices.DeleteFunc(slices.Clone(may), func(n string) bool { return !here[n] })
		}
		for _, addr := range addrs {
			d := found[addr]
			if d == nil {
				d = &Demand{Demand: hold.Demand{Addr: addr, Eligible: may, Possible: every}}
				found[addr] = d
			} else { // a node that answers for both must be good for both
				d.Eligible = slices.DeleteFunc(slices.Clone(d.Eligible),
					func(n string) bool { return !slices.Contains(may, n) })
			}
			d.Services = append(d.Services, service)
		}
	}
	out := make([]Demand, 0, len(found))
	for _, d := range found {
		out = append(out, *d)
	}
	slices.SortFunc(out, func(a, b Demand) int { return a.Addr.Compare(b.Addr) })
	return out, nil
}

// OfNodes are the nodes' own addresses. Nodes answer for these by themselves.
func OfNodes(nodes []*corev1.Node) map[netip.Addr]bool {
	own := map[netip.Addr]bool{}
	for _, n := range nodes {
		for _, a := range n.Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil {
				own[addr] = true
			}
		}
	}
	return own
}

// Addresses returns those of a Service's status that packets are addressed to, if they are of
// pools.
func Addresses(service *corev1.Service) (out []netip.Addr) {
	if service.Spec.Type != corev1.ServiceTypeLoadBalancer || service.DeletionTimestamp != nil ||
		meta.FindStatusCondition(service.Status.Conditions, balancers.PoolCondition) == nil {
		return nil
	}
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		addr, err := netip.ParseAddr(ingress.IP)
		if err == nil && ptr.Deref(ingress.IPMode, corev1.LoadBalancerIPModeVIP) == corev1.LoadBalancerIPModeVIP {
			out = append(out, addr.Unmap())
		}
	}
	return out
}

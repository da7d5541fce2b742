package bgp

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/edge/bgp/speaker"
	"github.com/barque/barque/edge/pool"
	"github.com/barque/barque/edge/services"
	"github.com/barque/barque/internal/balancers"
)

// view is what a node announces by.
type view struct {
	node     *corev1.Node // nil: the cluster does not have it
	nodes    []*corev1.Node
	services []*corev1.Service
	slices   []*discoveryv1.EndpointSlice
	ways     pool.Ways
}

// routes returns the addresses that a node announces: those of pools with BGP, while the node is
// Ready and is not to be left out. With the policy Local it needs a ready endpoint of the Service,
// and for the address of a Gateway its own gateway. A node that announces an address for several
// Services must be good for all of them.
func routes(v *view) map[netip.Prefix]speaker.Attributes {
	out, unfit := map[netip.Prefix]speaker.Attributes{}, map[netip.Addr]bool{}
	if v.node == nil || !balancers.Eligible(v.node) {
		return out
	}
	var here map[types.NamespacedName]bool
	for _, s := range v.services {
		for _, addr := range services.Addresses(s) {
			way := v.ways.Of(addr)
			if !way.BGP {
				continue
			}
			if balancers.OfGateway(s) && !balancers.HasGateway(v.node) {
				unfit[addr] = true
			}
			if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
				if here == nil {
					here = withEndpoints(v.slices, v.node.Name)
				}
				if !here[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}] {
					unfit[addr] = true
				}
			}
			out[netip.PrefixFrom(addr, addr.BitLen())] = speaker.Attributes{Communities: way.Communities,
				LargeCommunities: way.LargeCommunities, LocalPreference: way.LocalPreference}
		}
	}
	if len(out) == 0 {
		return out
	}
	own := services.OfNodes(v.nodes)
	for p := range out {
		if own[p.Addr()] || unfit[p.Addr()] {
			delete(out, p)
		}
	}
	return out
}

// withEndpoints are the Services that have a ready endpoint on the node.
func withEndpoints(all []*discoveryv1.EndpointSlice, node string) map[types.NamespacedName]bool {
	out := map[types.NamespacedName]bool{}
	for _, s := range all {
		if balancers.WithEndpoints(s)[node] {
			out[types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}] = true
		}
	}
	return out
}

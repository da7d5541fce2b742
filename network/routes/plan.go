package routes

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/network/nodeaddr"
	"github.com/barque/barque/network/overlay"
	"github.com/barque/barque/network/wireguard"
)

// Kind is the treatment of a route's packets.
type Kind string

const (
	// Via hands packets to another node, in a network that both are in.
	Via Kind = "via"
	// Overlay hands packets to another node through VXLAN.
	Overlay Kind = "overlay"
	// WireGuard sends packets to another node encrypted. The link selects the peer by the address.
	WireGuard Kind = "wireguard"
	// Unreachable answers at once that the pod does not exist: existing pods have more specific
	// routes.
	Unreachable Kind = "unreachable"
	// Local keeps packets on this node's link and gives them this node's address. It is for the
	// service network: a node without a default route can then start a connection that the service
	// proxy leads on.
	Local Kind = "local"
)

// Route is one route of this node; it is comparable.
type Route struct {
	Destination netip.Prefix
	Kind        Kind
	// Gateway of a Via or Overlay route.
	Gateway netip.Addr
}

// World is the input of a plan.
type World struct {
	Self            string
	Addresses       nodeaddr.Addresses
	ServiceNetworks []netip.Prefix
	// PodNetworks hold the shares of all nodes.
	PodNetworks []netip.Prefix
	Overlay     overlay.Config
	// WireGuard is this node's own endpoint; invalid without one.
	WireGuard wireguard.Endpoint
	Nodes     []*corev1.Node
	// OnLink tells whether packets to a node's address go to it without a router between.
	OnLink func(netip.Addr) bool
}

// pods reports whether a share is among the addresses of pods.
func (w World) pods(share netip.Prefix) bool {
	return slices.ContainsFunc(w.PodNetworks, func(network netip.Prefix) bool {
		return network.Bits() <= share.Bits() && network.Contains(share.Addr())
	})
}

// Plan is this node's routes and peers for reaching all pods.
type Plan struct {
	Routes map[netip.Prefix]Route
	// Own are this node's shares of the pod network; empty while it has none.
	Own []netip.Prefix
	// Endpoint is this node's own in the overlay, and Peers are those that it reaches there.
	Endpoint overlay.Endpoint
	Peers    []overlay.Peer
	// WireGuard is this node's own WireGuard endpoint, and Tunnels lead to the nodes that it
	// reaches by it.
	WireGuard wireguard.Endpoint
	Tunnels   []wireguard.Peer
	// keys has the owner of each public key.
	keys map[wireguard.Key]string
	// Unreached names the unreachable nodes with the reasons.
	Unreached error
}

// Make decides the transport to each node. It is pure.
//
// A pair of nodes uses an overlay when it must, or when one of both wants it. So both take the same
// path, and no packet comes back on another link than its answer leaves by. It uses WireGuard when
// one of both wants that, and never anything else in its place. If any node wants it, a pod without
// a path is unreachable, and no default route takes its packets in clear.
func Make(w World) Plan {
	p := Plan{Routes: map[netip.Prefix]Route{}, Endpoint: w.Overlay.Endpoint(w.Self, w.Addresses.Primary()),
		WireGuard: w.WireGuard}
	for _, network := range w.ServiceNetworks {
		if w.Addresses.Of(network.Addr().Is6()).IsValid() {
			p.Routes[network] = Route{Destination: network, Kind: Local}
		}
	}
	p.keys = keys(w)
	// Of two nodes with one share the older one has it, on every run.
	nodes := byAge(w.Nodes)
	for _, node := range nodes {
		if node.Name == w.Self {
			p.Own = shares(node)
		}
	}
	taken := newClaims(p.Own)
	for _, own := range p.Own {
		p.Routes[own] = Route{Destination: own, Kind: Unreachable}
	}
	for _, node := range nodes {
		if node.Name != w.Self {
			p.reach(w, node, taken)
		}
	}
	if !wishes(w) {
		return p
	}
	for _, network := range w.PodNetworks {
		if _, taken := p.Routes[network]; !taken { // by the only node there can be
			p.Routes[network] = Route{Destination: network, Kind: Unreachable}
		}
	}
	return p
}

// keys has the owner of each public key. Of two nodes with one key the older has it, and of this
// node and another one this node: WireGuard identifies peers by it alone.
func keys(w World) map[wireguard.Key]string {
	keys := map[wireguard.Key]string{}
	if w.WireGuard.IsValid() {
		keys[w.WireGuard.PublicKey] = w.Self
	}
	for _, node := range byAge(w.Nodes) {
		endpoint, err := wireguard.EndpointOf(node)
		if _, taken := keys[endpoint.PublicKey]; err == nil && endpoint.IsValid() && !taken && node.Name != w.Self {
			keys[endpoint.PublicKey] = node.Name
		}
	}
	return keys
}

// wishes tells whether this node or another one wants WireGuard.
func wishes(w World) bool {
	return w.WireGuard.To != wireguard.Nowhere || slices.ContainsFunc(w.Nodes, func(node *corev1.Node) bool {
		endpoint, err := wireguard.EndpointOf(node)
		return err == nil && node.Name != w.Self && endpoint.To != wireguard.Nowhere
	})
}

// byAge has the oldest nodes first.
func byAge(nodes []*corev1.Node) []*corev1.Node {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b *corev1.Node) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return nodes
}

// reach adds the routes to one node's pods. A share is a field of the Node, and a route to it takes
// packets from all less specific ones. So a share outside of the pod networks is not believed: it
// may hold a machine's address. Neither is one that overlaps an older node's.
func (p *Plan) reach(w World, node *corev1.Node, taken claims) {
	endpoint, announced, err := overlay.EndpointOf(node)
	if err != nil {
		p.fail(err)
	}
	encrypted, err := wireguard.EndpointOf(node)
	if err != nil {
		p.fail(err)
	}
	peer, tunnel := overlay.Peer{Node: node.Name, Endpoint: endpoint},
		wireguard.Peer{Node: node.Name, Endpoint: encrypted}
	for _, share := range shares(node) {
		if !w.pods(share) {
			p.fail(
				fmt.Errorf("the pods %v of node %s are not reached: they are outside of the pod networks %v", share,
					node.Name, w.PodNetworks))
			continue
		}
		if !taken.claim(share) {
			continue
		}
		gateway := internalIP(node, share.Addr().Is6())
		direct := Route{Destination: share, Kind: Via, Gateway: gateway}
		onLink := gateway.IsValid() && w.OnLink(gateway)
		if p.encrypts(endpoint, encrypted, onLink) {
			if p.tunnel(node, share, encrypted, announced) {
				tunnel.Shares = append(tunnel.Shares, share)
			}
			continue
		}
		wanted := p.Endpoint.IsValid() && endpoint.IsValid() && (p.Endpoint.Always || endpoint.Always || !onLink)
		if !wanted {
			// A new node announces its endpoint soon. For another node elsewhere the kernel reports
			// that it is unreachable.
			if gateway.IsValid() && (onLink || announced || !p.Endpoint.IsValid()) {
				p.Routes[share] = direct
			}
			continue
		}
		if len(p.Own) == 0 {
			continue // there is no address yet by which answers would come back
		}
		if err := matches(p.Endpoint, endpoint); err != nil {
			p.fail(fmt.Errorf("the pods %v of node %s are not reached: %w", share, node.Name, err))
			continue
		}
		through := overlay.Gateway4(share)
		if share.Addr().Is6() {
			through = endpoint.Gateway6()
		}
		p.Routes[share] = Route{Destination: share, Kind: Overlay, Gateway: through}
		if !slices.Contains(peer.Gateways, through) {
			peer.Gateways = append(peer.Gateways, through)
		}
	}
	if len(peer.Gateways) > 0 {
		p.Peers = append(p.Peers, peer)
	}
	if len(tunnel.Shares) > 0 {
		p.Tunnels = append(p.Tunnels, tunnel)
	}
}

// encrypts tells whether the pair of this node and another one takes WireGuard, or nothing.
func (p *Plan) encrypts(endpoint overlay.Endpoint, other wireguard.Endpoint, onLink bool) bool {
	if p.WireGuard.To == wireguard.Nowhere && other.To == wireguard.Nowhere {
		return false
	}
	everywhere := p.WireGuard.To == wireguard.Everywhere || other.To == wireguard.Everywhere
	return everywhere || p.Endpoint.Always || endpoint.Always || !onLink
}

// tunnel adds the route to a share of a node that is reached by WireGuard, if it can be.
func (p *Plan) tunnel(node *corev1.Node, share netip.Prefix, other wireguard.Endpoint, announced bool) bool {
	switch {
	case !p.WireGuard.IsValid():
		p.fail(
			fmt.Errorf(
				"the pods %v of node %s are not reached: it wants WireGuard, and this node has none: start this node without --overlay none, and see that its wireguard.key can be read", share, node.Name))
		return false
	case !other.IsValid() && !announced:
		return false // a new node announces its endpoint soon
	case !other.IsValid():
		p.fail(
			fmt.Errorf(
				"the pods %v of node %s are not reached: it has no WireGuard and this node wants no other way: update it, and start it without --overlay none", share, node.Name))
		return false
	case other.Address.Is6() != p.WireGuard.Address.Is6():
		p.fail(
			fmt.Errorf(
				"the pods %v of node %s are not reached: its first address is %v and this node's is %v: let --node-ip of all nodes begin with the same family", share, node.Name, other.Address, p.WireGuard.Address))
		return false
	case p.keys[other.PublicKey] != node.Name:
		p.fail(
			fmt.Errorf(
				"the pods %v of node %s are not reached: nodes %s and %s have one WireGuard key: delete wireguard.key in the data directory of one, and restart it", share, node.Name, p.keys[other.PublicKey], node.Name))
		return false
	case len(p.Own) == 0:
		return false // there is no address yet by which answers would come back
	}
	p.Routes[share] = Route{Destination: share, Kind: WireGuard}
	return true
}

// Without is the plan without the routes of a kind.
func (p Plan) Without(kind Kind) Plan {
	p.Routes = maps.Clone(p.Routes)
	maps.DeleteFunc(p.Routes, func(_ netip.Prefix, r Route) bool { return r.Kind == kind })
	return p
}

func (p *Plan) fail(err error) { p.Unreached = errors.Join(p.Unreached, err) }

// matches tells why two nodes cannot speak in one overlay.
func matches(own, other overlay.Endpoint) error {
	switch {
	case own.VNI != other.VNI:
		return fmt.Errorf(
			"its VXLAN network identifier is %d and this node's is %d: give all nodes the same --vxlan-vni", other.VNI,
			own.VNI)
	case own.Port != other.Port:
		return fmt.Errorf("its VXLAN port is %d and this node's is %d: give all nodes the same --vxlan-port",
			other.Port, own.Port)
	case own.Address.Is6() != other.Address.Is6():
		return fmt.Errorf(
			"its first address is %v and this node's is %v: let --node-ip of all nodes begin with the same family",
			other.Address, own.Address)
	}
	return nil
}

// shares returns the node's shares of the pod network, at most one of each family.
func shares(node *corev1.Node) []netip.Prefix {
	var found []netip.Prefix
	for _, raw := range append([]string{node.Spec.PodCIDR}, node.Spec.PodCIDRs...) {
		prefix, err := netip.ParsePrefix(raw)
		if err != nil ||
			slices.ContainsFunc(found, func(f netip.Prefix) bool { return f.Addr().Is6() == prefix.Addr().Is6() }) {
			continue
		}
		found = append(found, prefix.Masked())
	}
	return found
}

// internalIP returns the node's first internal address of the family.
func internalIP(node *corev1.Node, is6 bool) netip.Addr {
	for _, address := range node.Status.Addresses {
		if address.Type != corev1.NodeInternalIP {
			continue
		}
		if addr, err := netip.ParseAddr(address.Address); err == nil && addr.Is6() == is6 {
			return addr
		}
	}
	return netip.Addr{}
}

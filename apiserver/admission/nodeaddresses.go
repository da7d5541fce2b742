package admission

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/barque/barque/apiserver/nodeleases"
)

// addresses allows a node the addresses of its own machine. Servers call a node's kubelet at the
// address that it has written, and demand its certificate there; this keeps a node from making them
// call others at all. Foreign nodes may share an address, as those of one program do. Addresses
// that the Node has already are not checked again.
func (n *NodeRestriction) addresses(node string, obj, old *corev1.Node) error {
	byIP := slices.ContainsFunc(obj.Status.Addresses,
		func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP })
	for _, a := range obj.Status.Addresses {
		if slices.Contains(old.Status.Addresses, a) {
			continue
		}
		ip, err := netip.ParseAddr(a.Address)
		switch {
		case err == nil:
			err = n.ip(node, obj, a.Type, ip.Unmap())
		case byIP:
			err = nil // names are called only without an address
		default:
			err = n.hostName(node, a.Address)
		}
		if err != nil {
			return fmt.Errorf("is not allowed to have the address %s: %w", a.Address, err)
		}
	}
	return nil
}

func (n *NodeRestriction) ip(node string, obj *corev1.Node, kind corev1.NodeAddressType, ip netip.Addr) error {
	if ip.IsUnspecified() || ip.IsLoopback() || ip.IsMulticast() || ip.IsLinkLocalUnicast() || ip.Zone() != "" {
		return fmt.Errorf("others cannot reach a node at it")
	}
	if n.taken != nil {
		if err := n.taken(node, kind, ip); err != nil {
			return err
		}
	}
	if !nodeleases.IsMember(obj) {
		return nil
	}
	// Of members, gossip knows the addresses; Nodes of members that have swapped theirs still have
	// the former ones.
	all, err := n.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, other := range all {
		if other.Name != node && !nodeleases.IsMember(other) && isReady(other) &&
			slices.ContainsFunc(other.Status.Addresses, func(a corev1.NodeAddress) bool {
				have, err := netip.ParseAddr(a.Address)
				return err == nil && a.Type == corev1.NodeInternalIP && have.Unmap() == ip
			}) {
			return fmt.Errorf("it is that of node %q, which is Ready", other.Name)
		}
	}
	return nil
}

// hostName refuses the name of another node, by which its machine is often called.
func (n *NodeRestriction) hostName(node, name string) error {
	if name == "localhost" {
		return fmt.Errorf("others cannot reach a node at it")
	}
	if name == node {
		return nil
	}
	if _, err := n.nodes.Get(name); err == nil {
		return fmt.Errorf("it is the name of another node")
	}
	return nil
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

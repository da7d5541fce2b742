package devcluster

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/netname"
	"github.com/barque/barque/internal/osthread"
)

// makeNetwork makes the bridge and gives the nodes the machine's access to networks. Existing parts
// are kept. The caller has the host's lock.
func (p *Plan) makeNetwork() error {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: p.bridge()}}
	if err := netlink.LinkAdd(bridge); err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("make bridge %s: %w", p.bridge(), err)
	}
	link, err := netlink.LinkByName(p.bridge())
	if err != nil {
		return fmt.Errorf("bridge %s: %w", p.bridge(), err)
	}
	for _, subnet := range p.subnets() {
		if err := addAddr(link, gateway(subnet), subnet.Bits()); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bridge %s: %w", p.bridge(), err)
	}
	if err := p.forward(link); err != nil {
		return err
	}
	return p.masquerade()
}

// removeNetwork undoes makeNetwork. The caller has the host's lock.
func (p *Plan) removeNetwork() error {
	if err := errors.Join(p.heal(), p.removeMasquerade(), deleteLink(p.bridge())); err != nil {
		return err
	}
	return p.restoreForwarding()
}

// makeNamespace makes a node's network namespace with one interface, eth0, on the bridge.
func (p *Plan) makeNamespace(n *Node) error {
	if err := netname.Make(p.netns(n)); err != nil {
		return fmt.Errorf("network namespace of %s: %w", n.Name, err)
	}
	bridge, err := netlink.LinkByName(p.bridge())
	if err != nil {
		return fmt.Errorf("bridge %s: %w", p.bridge(), err)
	}
	if err := p.plug(n, bridge); err != nil {
		return fmt.Errorf("network of %s: %w", n.Name, err)
	}
	return osthread.InNetwork(p.netns(n), func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return fmt.Errorf("eth0 of %s: %w", n.Name, err)
		}
		for _, addr := range n.addresses() {
			if err := addAddr(eth0, addr, p.subnetOf(addr).Bits()); err != nil {
				return err
			}
		}
		if err := errors.Join(netlink.LinkSetUp(lo), netlink.LinkSetUp(eth0)); err != nil {
			return err
		}
		for _, addr := range n.addresses() {
			// Only a missing default route is added.
			to := gateway(p.subnetOf(addr))
			everything := &net.IPNet{IP: make(net.IP, to.BitLen()/8), Mask: net.CIDRMask(0, to.BitLen())}
			if err := netlink.RouteReplace(
				&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: to.AsSlice(), Dst: everything}); err != nil {
				return fmt.Errorf("default route of %s by %s: %w", n.Name, to, err)
			}
		}
		return nil
	})
}

// gateway is this machine's own address in a network of nodes.
func gateway(subnet netip.Prefix) netip.Addr { return address(subnet, 1) }

// plug connects the namespace to the bridge. The pair's far end is made in the namespace, so that
// the host never has a half-connected interface.
func (p *Plan) plug(n *Node, bridge netlink.Link) error {
	if _, err := netlink.LinkByName(p.veth(n)); err == nil {
		return nil
	}
	ns, err := netns.GetFromName(p.netns(n))
	if err != nil {
		return err
	}
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = p.veth(n), bridge.Attrs().Index
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(ns))}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("make veth pair %s: %w", p.veth(n), err)
	}
	return netlink.LinkSetUp(veth)
}

// removeNamespace removes the namespace, with its interfaces and rules. No process may live in it
// any more.
func (p *Plan) removeNamespace(n *Node) error {
	return errors.Join(deleteLink(p.veth(n)), netname.Remove(p.netns(n)))
}

func addAddr(link netlink.Link, addr netip.Addr, bits int) error {
	wanted := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, addr.BitLen())}}
	if addr.Is6() {
		wanted.Flags = unix.IFA_F_NODAD // it is planned, and used at once
	}
	err := netlink.AddrReplace(link, wanted)
	if addr.Is6() && errors.Is(err, unix.EACCES) {
		return fmt.Errorf(
			"give %s the address %s: IPv6 is off on this machine (sysctl net.ipv6.conf.all.disable_ipv6): %w",
			link.Attrs().Name, addr, err)
	}
	if err != nil {
		return fmt.Errorf("give %s the address %s: %w", link.Attrs().Name, addr, err)
	}
	return nil
}

func deleteLink(name string) error {
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil {
		return fmt.Errorf("remove interface %s: %w", name, err)
	}
	return nil
}

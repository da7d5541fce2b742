package sides

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/barque/barque/cluster-test/kubeapiserver"
	"github.com/barque/barque/cluster-test/netspace"
)

// bridge connects network namespaces with each other and with this machine. It leads nowhere else.
type bridge struct {
	link   netlink.Link
	subnet netip.Prefix
	spaces []netspace.Space
	plugs  []netlink.Link // this machine's ends of the pairs
}

// The networks that bridges take: 10.100.0.0/24 to 10.119.0.0/24. Those of dev clusters lie below.
const firstNetwork, lastNetwork = 100, 119

// newBridge makes a bridge with namespaces. They go with the processes in them. The bridge stays
// when this program is killed: then the next one takes another name and another network.
func newBridge(namespaces int) (b *bridge, err error) {
	b = &bridge{}
	defer func() {
		if err != nil {
			err = fmt.Errorf("network of upstream's servers: %w", errors.Join(err, b.close()))
		}
	}()
	if err = b.take(); err != nil {
		return b, err
	}
	if err = errors.Join(addAddress(b.link, b.address(1), b.subnet), netlink.LinkSetUp(b.link)); err != nil {
		return b, err
	}
	for i := range namespaces {
		s, err := netspace.New()
		if err != nil {
			return b, err
		}
		b.spaces = append(b.spaces, s)
		if err := b.plug(i); err != nil {
			return b, err
		}
	}
	return b, nil
}

// take makes a bridge whose network has no other user on this machine. The bridge's
// name marks the network as taken.
func (b *bridge) take() error {
	used, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	for n := firstNetwork; n <= lastNetwork; n++ {
		subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n), 0, 0}), 24)
		if slices.ContainsFunc(used, func(a net.Addr) bool { return overlaps(a, subnet) }) {
			continue
		}
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("upstream-%d", n)}}
		if err := netlink.LinkAdd(link); errors.Is(err, syscall.EEXIST) {
			continue
		} else if err != nil {
			return fmt.Errorf("make bridge %s (as root): %w", link.Name, err)
		}
		b.subnet = subnet
		b.link, err = netlink.LinkByName(link.Name)
		return err
	}
	return fmt.Errorf(
		"each network of 10.%d.0.0/24 to 10.%d.0.0/24 is taken; remove bridges upstream-* that were left (ip link del)",
		firstNetwork, lastNetwork)
}

func overlaps(a net.Addr, subnet netip.Prefix) bool {
	p, err := netip.ParsePrefix(a.String())
	return err == nil && p.Overlaps(subnet)
}

// address is number n of the network; the bridge has the first one, and the namespaces the next.
func (b *bridge) address(n byte) netip.Addr {
	a := b.subnet.Addr().As4()
	a[3] = n
	return netip.AddrFrom4(a)
}

// plug connects namespace i, by an interface eth0 there.
func (b *bridge) plug(i int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = fmt.Sprintf("%s-%d", b.link.Attrs().Name, i), b.link.Attrs().Index
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(b.spaces[i].NsHandle)}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("make veth pair %s: %w", attrs.Name, err)
	}
	b.plugs = append(b.plugs, veth)
	if err := netlink.LinkSetUp(veth); err != nil {
		return err
	}
	return b.spaces[i].Do(func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if err := errors.Join(addAddress(eth0, b.address(byte(i+2)), b.subnet), netlink.LinkSetUp(eth0)); err != nil {
			return err
		}
		// Nodes of a dev cluster have such a route, too.
		return netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: b.address(1).AsSlice()})
	})
}

func addAddress(link netlink.Link, a netip.Addr, subnet netip.Prefix) error {
	err := netlink.AddrAdd(link,
		&netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(subnet.Bits(), 32)}})
	if err != nil {
		return fmt.Errorf("give %s the address %s: %w", link.Attrs().Name, a, err)
	}
	return nil
}

func (b *bridge) hosts() (out []kubeapiserver.Host) {
	for i, s := range b.spaces {
		out = append(out, kubeapiserver.Host{Address: b.address(byte(i + 2)).String(), Do: s.Do})
	}
	return out
}

// close removes the bridge and the pairs. The namespaces go with the last process there, some time
// later, and until then their pairs would keep their names.
func (b *bridge) close() (err error) {
	for _, veth := range b.plugs {
		err = errors.Join(err, netlink.LinkDel(veth))
	}
	for i := range b.spaces {
		err = errors.Join(err, b.spaces[i].Close())
	}
	if b.link != nil {
		err = errors.Join(err, netlink.LinkDel(b.link))
	}
	return err
}

package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/cluster-test/netspace"
)

// The addresses. All of pods are in one network, so that neither side hides the client's.
var (
	podNetwork     = netip.MustParsePrefix("10.64.0.0/15")
	clientNetwork  = netip.MustParsePrefix("10.64.0.0/30") // .1 is the node's, .2 the client's
	transfer       = netip.MustParsePrefix("10.64.1.0/30") // .1 is the node's, .2 that of the other machine
	backendNetwork = netip.MustParsePrefix("10.65.0.0/16") // all of it answers
	nodeAddress    = netip.MustParseAddr("192.0.2.1")
)

// site is a node with a pod on it that is a client, and another machine that has all backends,
// each a network namespace. Packets between the two pass the node.
type site struct{ client, node, backends netspace.Space }

func newSite() (s *site, err error) {
	s = &site{netspace.Space{NsHandle: netns.None()}, netspace.Space{NsHandle: netns.None()},
		netspace.Space{NsHandle: netns.None()}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	for _, one := range []*netspace.Space{&s.client, &s.node, &s.backends} {
		if *one, err = netspace.New(); err != nil {
			return s, err
		}
	}
	if err = s.wire(); err != nil {
		err = fmt.Errorf("connect the network namespaces: %w", err)
	}
	return s, err
}

// close removes it, once all that runs there has ended.
func (s *site) close() (err error) {
	for _, one := range []*netspace.Space{&s.client, &s.node, &s.backends} {
		if one.IsOpen() {
			err = errors.Join(err, one.Close())
		}
	}
	return err
}

func (s *site) wire() error {
	err := s.node.Do(func() error {
		// The proxies that are compared lead IPv4 alone.
		for name, value := range map[string]string{"ipv4/ip_forward": "1", "ipv6/conf/all/disable_ipv6": "1"} {
			err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0)
			if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
				return err
			}
		}
		for name, far := range map[string]netspace.Space{"client": s.client, "backends": s.backends} {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = name
			if err := netlink.LinkAdd(
				&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0",
					PeerNamespace: netlink.NsFd(far.NsHandle)}); err != nil {
				return err
			}
		}
		return errors.Join(
			address("lo", netip.PrefixFrom(nodeAddress, 32)),
			address("client", prefixOf(clientNetwork, 1)), address("backends", prefixOf(transfer, 1)),
			route(netlink.Route{Dst: toNet(backendNetwork), Gw: prefixOf(transfer, 2).Addr().AsSlice()}, "backends"),
		)
	})
	if err != nil {
		return err
	}
	err = s.client.Do(func() error {
		return errors.Join(address("eth0", prefixOf(clientNetwork, 2)),
			route(netlink.Route{Dst: toNet(everything), Gw: prefixOf(clientNetwork, 1).Addr().AsSlice()}, "eth0"))
	})
	if err != nil {
		return err
	}
	return s.backends.Do(func() error {
		return errors.Join(
			address("eth0", prefixOf(transfer, 2)),
			route(netlink.Route{Dst: toNet(everything), Gw: prefixOf(transfer, 1).Addr().AsSlice()}, "eth0"),
			route(
				netlink.Route{Dst: toNet(backendNetwork), Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
					Table: unix.RT_TABLE_LOCAL}, "lo"),
		)
	})
}

var everything = netip.PrefixFrom(netip.IPv4Unspecified(), 0)

// prefixOf is address n of a network, with its length.
func prefixOf(network netip.Prefix, n byte) netip.Prefix {
	bytes := network.Addr().As4()
	bytes[3] += n
	return netip.PrefixFrom(netip.AddrFrom4(bytes), network.Bits())
}

func toNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
}

// address gives a link an address, and sets it up.
func address(link string, p netip.Prefix) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(l, &netlink.Addr{IPNet: toNet(p)}), netlink.LinkSetUp(l))
}

func route(r netlink.Route, link string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	r.LinkIndex = l.Attrs().Index
	return netlink.RouteAdd(&r)
}

// Package routes makes each node reach the pods of the others: one route per
// node, to its share of the pod network by its address. It owns the routes with
// protocol number Protocol in the main table, and no others: an administrator's
// route to the same network has a better metric and wins.
//
// All nodes have to be in one layer-2 network; a node that is elsewhere is told
// by an error, and the rest is done all the same. Everything happens in the
// network namespace of the calling thread.
package routes

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/netdump"
)

const (
	// Protocol marks our routes (`ip route show proto 98`).
	Protocol = 98
	// metric is worse than that of routes that people and DHCP make.
	metric = 2048
)

// Link returns the link that has an address of this node.
func Link(address netip.Addr) (netlink.Link, error) {
	addrs, err := netdump.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, addr := range addrs {
		if have, ok := netip.AddrFromSlice(addr.IP.To4()); ok && have == address {
			return netlink.LinkByIndex(addr.LinkIndex)
		}
	}
	return nil, fmt.Errorf("no link of this machine has the node's address %v", address)
}

// Apply makes our routes in the kernel exactly the desired ones. It does as much
// as it can and returns all errors.
func Apply(desired map[netip.Prefix]Route, nodeIP netip.Addr) error {
	link, err := Link(nodeIP)
	if err != nil {
		return fmt.Errorf("pod routes: %w", err)
	}
	present, err := ours()
	if err != nil {
		return fmt.Errorf("pod routes: %w", err)
	}
	var failed error
	satisfied := map[netip.Prefix]bool{}
	for _, route := range present {
		destination := prefixOf(route.Dst)
		want, wanted := desired[destination]
		if wanted && matches(route, want, link, nodeIP) {
			satisfied[destination] = true
			continue
		}
		if err := netlink.RouteDel(&route); err != nil && !errors.Is(err, unix.ESRCH) {
			failed = errors.Join(failed, fmt.Errorf("remove route to %v: %w", destination, err))
		}
	}
	for destination, want := range desired {
		if satisfied[destination] {
			continue
		}
		if err := netlink.RouteReplace(kernelRoute(want, link, nodeIP)); err != nil {
			failed = errors.Join(failed, explain(want, err))
		}
	}
	if failed != nil {
		return fmt.Errorf("pod routes: %w", failed)
	}
	return nil
}

// Purge removes our routes.
func Purge() error {
	present, err := ours()
	if err != nil {
		return fmt.Errorf("pod routes: %w", err)
	}
	var failed error
	for _, route := range present {
		if err := netlink.RouteDel(&route); err != nil && !errors.Is(err, unix.ESRCH) {
			failed = errors.Join(failed, fmt.Errorf("pod routes: remove route to %v: %w", route.Dst, err))
		}
	}
	return failed
}

func ours() ([]netlink.Route, error) {
	filter := &netlink.Route{Protocol: Protocol, Table: unix.RT_TABLE_MAIN}
	present, err := netdump.Whole(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return present, nil
}

// kernelRoute says a Route as netlink does.
func kernelRoute(want Route, link netlink.Link, nodeIP netip.Addr) *netlink.Route {
	route := &netlink.Route{
		Dst:      &net.IPNet{IP: want.Destination.Addr().AsSlice(), Mask: net.CIDRMask(want.Destination.Bits(), 32)},
		Protocol: Protocol,
		Table:    unix.RT_TABLE_MAIN,
		Priority: metric,
	}
	switch want.Kind {
	case Unreachable:
		route.Type = unix.RTN_UNREACHABLE
	case Local:
		route.Type = unix.RTN_UNICAST
		route.LinkIndex = link.Attrs().Index
		route.Scope = netlink.SCOPE_LINK
		route.Src = nodeIP.AsSlice()
	default:
		route.Type = unix.RTN_UNICAST
		route.Gw = want.Gateway.AsSlice()
	}
	return route
}

// matches tells whether the kernel's route does what is wanted.
func matches(have netlink.Route, want Route, link netlink.Link, nodeIP netip.Addr) bool {
	wanted := kernelRoute(want, link, nodeIP)
	if have.Type != wanted.Type || have.Priority != metric || !have.Gw.Equal(wanted.Gw) {
		return false
	}
	return want.Kind != Local || have.LinkIndex == wanted.LinkIndex && have.Src.Equal(wanted.Src)
}

// explain turns the kernel's number into what to do about it.
func explain(want Route, err error) error {
	if want.Kind == Via && (errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EINVAL)) {
		return fmt.Errorf("the node at %v, which has the pods of %v, is in no network that this node is directly connected to; put all nodes into one layer-2 network: %w",
			want.Gateway, want.Destination, err)
	}
	return fmt.Errorf("add route to %v: %w", want.Destination, err)
}

func prefixOf(network *net.IPNet) netip.Prefix {
	if network == nil {
		return netip.Prefix{}
	}
	addr, _ := netip.AddrFromSlice(network.IP.To4())
	bits, _ := network.Mask.Size()
	return netip.PrefixFrom(addr, bits)
}

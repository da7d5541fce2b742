// Package routes makes each node reach the pods of the others. There is one route per share of the
// pod network, to the node that has it, either by its address or through the overlay (package
// overlay). It owns the routes with protocol number Protocol in the main table, and no others: an
// administrator's route to the same network has a better metric and wins.
//
// An unreachable node causes an error, and the rest is done all the same. Everything happens in the
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
	"github.com/barque/barque/network/nodeaddr"
)

const (
	// Protocol marks our routes (`ip route show proto 98`).
	Protocol = 98
	// metric is worse than that of routes that people and DHCP make.
	metric = 2048
)

// Links are the indexes of the links through which routes of a kind lead: Overlay and WireGuard.
type Links map[Kind]int

// maker converts Routes for netlink.
type maker struct {
	addresses nodeaddr.Addresses
	links     map[bool]int // of the node's addresses, by family
	tunnels   Links
	own       []netip.Prefix
}

// Apply makes our routes in the kernel exactly those of the plan. It does as much as it can and
// returns all errors. tunnels has the links of the plan's kinds.
func Apply(plan Plan, addresses nodeaddr.Addresses, tunnels Links) error {
	m := maker{addresses: addresses, links: map[bool]int{}, tunnels: tunnels, own: plan.Own}
	for _, addr := range addresses.Internal {
		link, err := nodeaddr.Link(addr)
		if err != nil {
			return fmt.Errorf("pod routes: %w", err)
		}
		m.links[addr.Is6()] = link.Attrs().Index
	}
	present, err := ours()
	if err != nil {
		return fmt.Errorf("pod routes: %w", err)
	}
	failed := plan.Unreached
	satisfied := map[netip.Prefix]bool{}
	var wrong []netlink.Route
	for _, route := range present {
		destination := nodeaddr.Prefix(route.Dst)
		if want, wanted := plan.Routes[destination]; wanted && !satisfied[destination] && m.matches(route, want) {
			satisfied[destination] = true
		} else {
			wrong = append(wrong, route)
		}
	}
	// New ways before old ones go: packets always find one.
	for destination, want := range plan.Routes {
		if satisfied[destination] {
			continue
		}
		if err := netlink.RouteReplace(m.route(want)); err != nil {
			failed = errors.Join(failed, explain(want, err))
		}
	}
	for _, route := range wrong {
		if err := netlink.RouteDel(&route); err != nil && !errors.Is(err, unix.ESRCH) {
			failed = errors.Join(failed, fmt.Errorf("remove route to %v: %w", route.Dst, err))
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

// Found returns the destinations of our routes.
func Found() ([]string, error) {
	present, err := ours()
	if err != nil {
		return nil, fmt.Errorf("pod routes: %w", err)
	}
	var found []string
	for _, route := range present {
		found = append(found, route.Dst.String())
	}
	return found, nil
}

func ours() ([]netlink.Route, error) {
	var all []netlink.Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		filter := &netlink.Route{Protocol: Protocol, Table: unix.RT_TABLE_MAIN}
		present, err := netdump.Whole(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, route := range present { // a kernel without IPv6 answers with IPv4
			if route.Dst != nil && (len(route.Dst.Mask) == net.IPv6len) == (family == netlink.FAMILY_V6) {
				all = append(all, route)
			}
		}
	}
	return all, nil
}

func (m maker) route(want Route) *netlink.Route {
	is6 := want.Destination.Addr().Is6()
	route := &netlink.Route{
		Dst:      nodeaddr.IPNet(want.Destination),
		Protocol: Protocol,
		Table:    unix.RT_TABLE_MAIN,
		Priority: metric,
		Type:     unix.RTN_UNICAST,
	}
	switch want.Kind {
	case Unreachable:
		route.Type = unix.RTN_UNREACHABLE
	case Local:
		route.LinkIndex = m.links[is6]
		route.Src = m.addresses.Of(is6).AsSlice()
		if !is6 {
			route.Scope = netlink.SCOPE_LINK
		}
	case Overlay, WireGuard:
		route.LinkIndex = m.tunnels[want.Kind]
		if want.Kind == Overlay {
			route.Gw = want.Gateway.AsSlice()
			route.Flags = int(netlink.FLAG_ONLINK)
		} else if !is6 {
			route.Scope = netlink.SCOPE_LINK
		}
		for _, own := range m.own {
			if own.Addr().Is6() == is6 {
				route.Src = own.Masked().Addr().AsSlice()
			}
		}
	default:
		route.Gw = want.Gateway.AsSlice()
	}
	return route
}

// matches reports whether the kernel's route is as wanted.
func (m maker) matches(have netlink.Route, want Route) bool {
	wanted := m.route(want)
	if have.Type != wanted.Type || have.Priority != metric || !have.Gw.Equal(wanted.Gw) {
		return false
	}
	return wanted.LinkIndex == 0 || have.LinkIndex == wanted.LinkIndex && have.Src.Equal(wanted.Src)
}

// explain turns the kernel's error number into a remedy.
func explain(want Route, err error) error {
	if want.Kind == Via &&
		(errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EINVAL)) {
		return fmt.Errorf(
			"the node at %v, which has the pods of %v, is in no network that this node is directly connected to, and one of both has no overlay; start both with --overlay auto: %w",
			want.Gateway, want.Destination, err)
	}
	return fmt.Errorf("add route to %v: %w", want.Destination, err)
}

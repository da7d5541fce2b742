// Package nodeaddr has this machine's addresses as a node of the cluster: their families, the links
// that have them, and the MTU of these links. They are read once, from flags or from the routes of
// the machine, and all other code takes them from here.
package nodeaddr

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/netdump"
)

// Addresses are those of one node, at most one of each family. The first of a list is the primary
// one.
type Addresses struct {
	// Internal are the addresses by which the other nodes reach this one.
	Internal []netip.Addr
	// External are shown in the Node object, and are not used by Barque.
	External []netip.Addr
}

// Primary is the address at which the node serves its ports.
func (a Addresses) Primary() netip.Addr { return a.Internal[0] }

// Of returns the internal address of a family; it is not valid without one.
func (a Addresses) Of(is6 bool) netip.Addr { return pick(a.Internal, is6) }

// All are the internal and the external addresses.
func (a Addresses) All() []netip.Addr {
	return append(append([]netip.Addr(nil), a.Internal...), a.External...)
}

func pick(addrs []netip.Addr, is6 bool) netip.Addr {
	for _, addr := range addrs {
		if addr.Is6() == is6 {
			return addr
		}
	}
	return netip.Addr{}
}

// Parse reads addresses: one, or one of each family.
func Parse(texts []string) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, text := range texts {
		addr, err := netip.ParseAddr(text)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%q is no IP address", text)
		case addr.IsUnspecified(), addr.IsMulticast(), addr.IsLinkLocalUnicast(), addr.Is4In6(), addr.Zone() != "":
			return nil, fmt.Errorf("%s is no address at which other machines reach this one", text)
		case pick(addrs, addr.Is6()).IsValid():
			return nil,
				fmt.Errorf("%s and %s are of one family: want one address, or one IPv4 and one IPv6 address",
					pick(addrs, addr.Is6()), addr)
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// Detect returns the addresses that this machine would use to reach others: IPv4 first, then IPv6.
// A UDP socket finds each without sending anything.
func Detect() ([]netip.Addr, error) {
	// The networks for documentation of RFC 5737 and RFC 3849.
	v4, err4 := outbound("udp4", "192.0.2.1:9")
	v6, err6 := outbound("udp6", "[2001:db8::1]:9")
	var addrs []netip.Addr
	if err4 == nil {
		addrs = append(addrs, v4)
	}
	if err6 == nil && v6.IsGlobalUnicast() {
		addrs = append(addrs, v6)
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("find this machine's address: %w; give it with --node-ip", errors.Join(err4, err6))
	}
	return addrs, nil
}

const (
	detectEvery = 500 * time.Millisecond
	remindEvery = time.Minute
)

// Await waits until Detect finds addresses that are enough, and returns how long that took. It
// calls missing with each new reason to wait, and from time to time. It fails when ctx ends.
func Await(ctx context.Context, enough func([]netip.Addr) error, missing func(error)) (time.Duration, error) {
	return awaitBy(ctx, func() error {
		addrs, err := Detect()
		if err != nil {
			return err
		}
		return enough(addrs)
	}, missing)
}

func awaitBy(ctx context.Context, detect func() error, missing func(error)) (time.Duration, error) {
	began := time.Now()
	var reminded time.Time
	var reason string
	for {
		err := detect()
		if err == nil {
			if reminded.IsZero() {
				return 0, nil
			}
			return time.Since(began), nil
		}
		if err.Error() != reason || time.Since(reminded) >= remindEvery {
			reminded, reason = time.Now(), err.Error()
			missing(err)
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(detectEvery):
		}
	}
}

func outbound(network, to string) (netip.Addr, error) {
	conn, err := net.Dial(network, to)
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// ErrNoLink means that no link of the machine has an address.
var ErrNoLink = errors.New("no link of this machine has the node's address")

// Link returns the link that has an address of this node, in the network namespace of the thread.
func Link(address netip.Addr) (netlink.Link, error) {
	addrs, err := netdump.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, addr := range addrs {
		if have, ok := netip.AddrFromSlice(addr.IP); ok && have.Unmap() == address {
			return netlink.LinkByIndex(addr.LinkIndex)
		}
	}
	return nil, fmt.Errorf("%w %v", ErrNoLink, address)
}

// MTU is the largest packet that all links with internal addresses of the node take.
func (a Addresses) MTU() (int, error) {
	mtu := 0
	for _, addr := range a.Internal {
		link, err := Link(addr)
		if err != nil {
			return 0, err
		}
		if of := link.Attrs().MTU; mtu == 0 || of < mtu {
			mtu = of
		}
	}
	return mtu, nil
}

// Up returns the fault of the links that have the internal addresses: nil if each exists and is up,
// with a carrier. failed is set if the kernel does not answer.
func (a Addresses) Up() (fault, failed error) {
	for _, addr := range a.Internal {
		link, err := Link(addr)
		switch {
		case errors.Is(err, ErrNoLink):
			return err, nil
		case err != nil:
			return nil, err
		}
		switch of := link.Attrs(); {
		case of.Flags&net.FlagUp == 0:
			return fmt.Errorf("the link %s with the node's address %v is down", of.Name, addr), nil
		case of.RawFlags&unix.IFF_RUNNING == 0 && link.Type() != "bridge": // one without ports serves its own machine
			return fmt.Errorf("the link %s with the node's address %v has no carrier", of.Name, addr), nil
		}
	}
	return nil, nil
}

// Links returns the names of the existing links that have the internal addresses.
func (a Addresses) Links() map[netip.Addr]string {
	links := map[netip.Addr]string{}
	for _, addr := range a.Internal {
		if link, err := Link(addr); err == nil {
			links[addr] = link.Attrs().Name
		}
	}
	return links
}

// Replaced finds an internal address that no link has any more, if the machine reaches others by
// another address of its family on the same link. Links are those that had the addresses. An
// address of another link is no replacement: that leads into another network.
func (a Addresses) Replaced(links map[netip.Addr]string) (before, now netip.Addr, replaced bool) {
	found, err := Detect()
	if err != nil {
		return before, now, false // a machine without a way out has nowhere to move to
	}
	for _, addr := range a.Internal {
		other := pick(found, addr.Is6())
		if _, err := Link(addr); !errors.Is(err, ErrNoLink) || !other.IsValid() {
			continue
		}
		if link, err := Link(other); err == nil && link.Attrs().Name == links[addr] {
			return addr, other, true
		}
	}
	return before, now, false
}

// OnLink tells whether packets to an address go to it directly, and not to a router.
func OnLink(addr netip.Addr) bool {
	routes, err := netlink.RouteGet(addr.AsSlice())
	if err != nil || len(routes) == 0 {
		return false
	}
	return len(routes[0].Gw) == 0 && routes[0].Via == nil
}

// IPNet converts a prefix for netlink.
func IPNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}

// Prefix is the reverse of IPNet; it is not valid for nil.
func Prefix(network *net.IPNet) netip.Prefix {
	if network == nil {
		return netip.Prefix{}
	}
	addr, _ := netip.AddrFromSlice(network.IP)
	ones, bits := network.Mask.Size()
	if bits == 32 {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, ones)
}

// Way is how packets leave this machine for an address.
type Way struct {
	// Own means that the address is this machine's.
	Own bool
	// Direct means that no router is between.
	Direct bool
	// Link is the name of the link that they leave by, and MTU its own.
	Link string
	MTU  int
}

// WayTo asks the kernel for the way to an address.
func WayTo(addr netip.Addr) (Way, error) {
	routes, err := netlink.RouteGet(addr.AsSlice())
	if err == nil && len(routes) == 0 {
		err = errors.New("there is none")
	}
	if err != nil {
		return Way{}, fmt.Errorf("the way to %v: %w", addr, err)
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return Way{}, fmt.Errorf("the way to %v: %w", addr, err)
	}
	return Way{
		Own: routes[0].Type == unix.RTN_LOCAL, Direct: len(routes[0].Gw) == 0 && routes[0].Via == nil,
		Link: link.Attrs().Name, MTU: link.Attrs().MTU,
	}, nil
}

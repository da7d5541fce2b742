package announce

import (
	"net"
	"net/netip"
	"slices"
)

// network has a machine's addresses on one interface.
type network struct {
	link
	prefixes []netip.Prefix
}

// networks reads this machine's Ethernet interfaces that are up and have addresses.
func networks() ([]network, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var out []network
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagBroadcast == 0 || len(i.HardwareAddr) != macLen {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // it has just gone
		}
		n := network{link: link{index: i.Index, name: i.Name, mac: i.HardwareAddr}}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				n.prefixes = append(n.prefixes, netip.PrefixFrom(p.Addr().Unmap(), p.Bits()))
			}
		}
		if len(n.prefixes) > 0 {
			out = append(out, n)
		}
	}
	return out, nil
}

// linksFor returns the links on which an address is announced: those whose networks contain it. If
// there is none, it is the link of the node's own address: the address may be routed to it.
func linksFor(addr netip.Addr, all []network, own []netip.Addr) (out []link) {
	for _, n := range all {
		if slices.ContainsFunc(n.prefixes, func(p netip.Prefix) bool {
			return p.Bits() < p.Addr().BitLen() && p.Contains(addr) && !p.Addr().IsLinkLocalUnicast()
		}) {
			out = append(out, n.link)
		}
	}
	if len(out) > 0 {
		return out
	}
	for _, n := range all {
		if slices.ContainsFunc(n.prefixes, func(p netip.Prefix) bool {
			return p.Addr().Is4() == addr.Is4() && slices.Contains(own, p.Addr())
		}) {
			return []link{n.link}
		}
	}
	return nil
}

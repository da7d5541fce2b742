package nodeaddr

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/netdump"
)

// Assign gives a link exactly these addresses, in addition to the kernel's own link-local ones. The
// IPv6 ones can be used at once: there is no duplicate address detection.
func Assign(link netlink.Link, addresses []netip.Prefix) error {
	name := link.Attrs().Name
	have, err := netdump.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list the addresses of %s: %w", name, err)
	}
	missing := map[netip.Prefix]bool{}
	for _, address := range addresses {
		missing[address] = true
	}
	for _, addr := range have {
		if addr.IP.IsLinkLocalUnicast() {
			continue // the kernel's
		}
		if prefix := Prefix(addr.IPNet); missing[prefix] {
			delete(missing, prefix)
		} else if err := netlink.AddrDel(link, &addr); err != nil {
			return fmt.Errorf("take the address %v from %s: %w", addr.IPNet, name, err)
		}
	}
	for address := range missing {
		addr := &netlink.Addr{IPNet: IPNet(address)}
		if address.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("give %s the address %v: %w", name, address, err)
		}
	}
	return nil
}

// Firsts are the first addresses of shares of the pod network, which no pod has.
func Firsts(shares []netip.Prefix) []netip.Prefix {
	var all []netip.Prefix
	for _, share := range shares {
		first := share.Masked().Addr()
		all = append(all, netip.PrefixFrom(first, first.BitLen()))
	}
	return all
}

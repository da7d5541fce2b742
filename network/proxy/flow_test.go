package proxy

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// flow is a tracked UDP connection that asked one address and is answered by another.
func flow(asked, answering string) *netlink.ConntrackFlow {
	to, from := netip.MustParseAddrPort(asked), netip.MustParseAddrPort(answering)
	return &netlink.ConntrackFlow{
		Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, DstIP: to.Addr().AsSlice(), DstPort: to.Port()},
		Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: from.Addr().AsSlice(), SrcPort: from.Port()},
	}
}

package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/network/dns"
	"github.com/barque/barque/network/proxy"
)

// localDNS is where cluster DNS listens on each node. No machine routes link-local addresses, and the
// service proxy drops what neighbours send there; the loopback itself is closed to pods. The port
// leaves 53 to a name server of the machine that listens at all its addresses.
var localDNS = netip.MustParseAddrPort("169.254.20.53:10053")

// portDNS is where clients ask.
const portDNS = 53

// newDNS makes the node's cluster DNS out of what the network has.
func newDNS(config *Config) (*dns.Server, error) {
	c := *config.DNS
	c.Listen = localDNS
	c.Networks = []netip.Prefix{config.PodNetwork.Masked(), config.ServiceNetwork}
	c.Services, c.EndpointSlices = config.Services, config.EndpointSlices
	c.Logger = config.Logger
	return dns.New(c)
}

// frontendsOf leads the addresses of cluster DNS to the node's own.
func frontendsOf(addrs []netip.Addr) map[proxy.Frontend]proxy.Backend {
	local := map[proxy.Frontend]proxy.Backend{}
	for _, addr := range addrs {
		for _, protocol := range []corev1.Protocol{corev1.ProtocolUDP, corev1.ProtocolTCP} {
			local[proxy.Frontend{Addr: addr, Protocol: protocol, Port: portDNS}] = proxy.Backend{Addr: localDNS.Addr(), Port: localDNS.Port()}
		}
	}
	return local
}

// claim makes an address this machine's, on the loopback.
func claim(addr netip.Addr) error {
	link, of, err := onLoopback(addr)
	if err == nil {
		err = netlink.AddrReplace(link, of)
	}
	if err != nil {
		return fmt.Errorf("network: give the loopback the address %v: %w", addr, err)
	}
	return nil
}

// unclaim takes the address away. It succeeds where it is not there.
func unclaim(addr netip.Addr) error {
	link, of, err := onLoopback(addr)
	if err == nil {
		err = netlink.AddrDel(link, of)
	}
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("network: take the address %v from the loopback: %w", addr, err)
	}
	return nil
}

func onLoopback(addr netip.Addr) (netlink.Link, *netlink.Addr, error) {
	link, err := netlink.LinkByName("lo")
	bits := addr.BitLen()
	return link, &netlink.Addr{
		IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, bits)}, Scope: unix.RT_SCOPE_HOST,
	}, err
}

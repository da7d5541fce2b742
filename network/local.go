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

// Addresses of cluster DNS on each node, in the family of its service. No machine routes link-local
// IPv4 addresses, and the service proxy drops neighbours' packets to either; the loopback itself is
// closed to pods. The IPv6 address has a random prefix (RFC 4193). Port 53 stays free for a name
// server of the machine that listens at all its addresses.
var (
	localDNS4 = netip.MustParseAddrPort("169.254.20.53:10053")
	localDNS6 = netip.MustParseAddrPort("[fd5b:a3c7:91de::53]:10053")
)

// localDNS is where cluster DNS listens on this cluster's nodes.
func (c *Config) localDNS() netip.AddrPort {
	if c.ServiceNetworks[0].Addr().Is6() {
		return localDNS6
	}
	return localDNS4
}

// portDNS is where clients ask.
const portDNS = 53

// newDNS makes the node's cluster DNS from the network's configuration.
func newDNS(config *Config) (*dns.Server, error) {
	c := *config.DNS
	c.Listen = config.localDNS()
	c.Networks = append(append([]netip.Prefix(nil), config.PodNetworks...), config.ServiceNetworks...)
	c.Services, c.EndpointSlices = config.Services, config.EndpointSlices
	c.Logger = config.Logger
	return dns.New(c)
}

// frontends lead the addresses of cluster DNS to the node's own.
func (c *Config) frontends() map[proxy.Frontend]proxy.Backend {
	local, own := map[proxy.Frontend]proxy.Backend{}, c.localDNS()
	for _, addr := range c.DNS.Addresses {
		for _, protocol := range []corev1.Protocol{corev1.ProtocolUDP, corev1.ProtocolTCP} {
			local[proxy.Frontend{Addr: addr, Protocol: protocol, Port: portDNS}] = proxy.Backend{Addr: own.Addr(),
				Port: own.Port()}
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
	of := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, bits)},
		Scope: unix.RT_SCOPE_HOST}
	if addr.Is6() {
		of.Flags = unix.IFA_F_NODAD
	}
	return link, of, err
}

package options

import (
	"net/netip"
	"slices"

	"github.com/barque/barque/membership/enroll"
)

// completeAPIAddresses reads --api-address, and checks it against this machine's own addresses.
func (o *Options) completeAPIAddresses() error {
	o.APIAddresses = nil
	for _, text := range o.Serving.addresses() {
		addr, err := netip.ParseAddr(text)
		switch {
		case err != nil || !addr.IsGlobalUnicast() || addr.Zone() != "" || addr.Is4In6():
			return enroll.WrongOption(
				"--api-address %q: want a free address of the servers' network, such as 192.0.2.10", text)
		case slices.ContainsFunc(o.APIAddresses, func(a netip.Addr) bool { return a.Is4() == addr.Is4() }):
			return enroll.WrongOption("--api-address %s: want one address, or one of each family", text)
		case slices.Contains(o.Addresses.All(), addr):
			return enroll.WrongOption("--api-address %s is this machine's own address: give one that no machine has",
				text)
		case !slices.ContainsFunc(o.Addresses.Internal, func(a netip.Addr) bool { return a.Is4() == addr.Is4() }):
			return enroll.WrongOption(
				"--api-address %s: this machine has no address of that family (%v): give one with --node-ip", text,
				o.Addresses.Internal)
		}
		o.APIAddresses = append(o.APIAddresses, addr)
	}
	return nil
}

// checkAPIAddresses checks them against the cluster's settings.
func (o *Options) checkAPIAddresses(s Settings) error {
	for _, addr := range o.APIAddresses {
		for what, networks := range map[string]interface{ Contains(netip.Addr) bool }{"pods": s.ClusterCIDRs,
			"services": s.ServiceCIDRs} {
			if networks.Contains(addr) {
				return enroll.WrongOption(
					"--api-address %s is among the addresses of %s: give one of the servers' network", addr, what)
			}
		}
	}
	return nil
}

// APIAddress is the first address of --api-address; the zero Addr without one.
func (o *Options) APIAddress() netip.Addr {
	if len(o.APIAddresses) == 0 {
		return netip.Addr{}
	}
	return o.APIAddresses[0]
}

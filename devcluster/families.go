package devcluster

import (
	"fmt"
	"net/netip"
	"strings"
)

// Family is a family of IP addresses.
type Family string

// The families, in the form of --ip-families.
const (
	IPv4 Family = "ipv4"
	IPv6 Family = "ipv6"
)

// ParseFamilies reads a list of families, the primary one first.
func ParseFamilies(names []string) ([]Family, error) {
	var families []Family
	for _, name := range names {
		family := Family(strings.ToLower(strings.TrimSpace(name)))
		if family != IPv4 && family != IPv6 {
			return nil,
				wrong("--ip-families %s: want ipv4, ipv6, or both with the primary one first (ipv4,ipv6)",
					strings.Join(names, ","))
		}
		families = append(families, family)
	}
	return families, checkFamilies(families)
}

func checkFamilies(families []Family) error {
	if len(families) > 2 || len(families) == 2 && families[0] == families[1] {
		return wrong("families of addresses %v: want each once at most", families)
	}
	return nil
}

// ranges returns the ranges of pods and services for a family.
func (f Family) ranges() (pods, services string) {
	if f == IPv6 {
		return "fd00:42::/56", "fd00:43::/112"
	}
	return "10.42.0.0/16", "10.43.0.0/16"
}

// hasIPv6 reports whether the cluster has IPv6. A plan of an earlier version has IPv4 alone.
func (p *Plan) hasIPv6() bool { return p.Subnet6.IsValid() }

// subnets returns the networks of the nodes; each node has an address in each.
func (p *Plan) subnets() []netip.Prefix {
	if p.hasIPv6() {
		return []netip.Prefix{p.Subnet, p.Subnet6}
	}
	return []netip.Prefix{p.Subnet}
}

// joined are networks as a command line has them.
func joined(networks []netip.Prefix) string {
	var all []string
	for _, network := range networks {
		all = append(all, network.String())
	}
	return strings.Join(all, ",")
}

// address returns a node's address in a network, by its number. The number is read as written: 11
// is 10.77.0.11 and fd00:10:77::11.
func address(subnet netip.Prefix, number int) netip.Addr {
	if subnet.Addr().Is6() {
		return netip.MustParseAddr(fmt.Sprintf("%s%d", subnet.Addr(), number))
	}
	b := subnet.Addr().As4()
	b[3] = byte(number)
	return netip.AddrFrom4(b)
}

// newNode makes a node with its addresses.
func (p *Plan) newNode(name, role string, number int) Node {
	n := Node{Name: name, Role: role, Addr: address(p.Subnet, number)}
	if p.hasIPv6() {
		n.Other = address(p.Subnet6, number)
	}
	if len(p.Families) > 0 && p.Families[0] == IPv6 {
		n.Addr, n.Other = n.Other, n.Addr
	}
	return n
}

// addresses returns those of the node's interface.
func (n *Node) addresses() []netip.Addr {
	if n.Other.IsValid() {
		return []netip.Addr{n.Addr, n.Other}
	}
	return []netip.Addr{n.Addr}
}

// subnetOf is the network of a node's address.
func (p *Plan) subnetOf(addr netip.Addr) netip.Prefix {
	if addr.Is6() {
		return p.Subnet6
	}
	return p.Subnet
}

// nodeIPs returns a node's --node-ip. In an IPv6-only cluster the node keeps an IPv4 address beside
// it, to reach registries and name servers.
func (p *Plan) nodeIPs(n *Node) string {
	if len(p.Families) == 2 {
		return fmt.Sprintf("%s,%s", n.Addr, n.Other)
	}
	return n.Addr.String()
}

// rangeArgs returns the servers' range flags; none for IPv4 alone, the servers' default.
func (p *Plan) rangeArgs() []string {
	if !p.hasIPv6() {
		return nil
	}
	var pods, services []string
	for _, family := range p.Families {
		ofPods, ofServices := family.ranges()
		pods, services = append(pods, ofPods), append(services, ofServices)
	}
	return []string{"--cluster-cidr", strings.Join(pods, ","), "--service-cidr", strings.Join(services, ",")}
}

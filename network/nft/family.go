package nft

import (
	"net/netip"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Family is that of a table's packets and addresses. The zero value is IPv4.
type Family byte

const (
	IPv4 Family = iota
	IPv6
)

// FamilyOf an address.
func FamilyOf(addr netip.Addr) Family {
	if addr.Is6() {
		return IPv6
	}
	return IPv4
}

// Has tells whether an address is of the family.
func (f Family) Has(addr netip.Addr) bool { return addr.IsValid() && FamilyOf(addr) == f }

func (f Family) String() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// table is the family as the kernel numbers it.
func (f Family) table() nftables.TableFamily {
	if f == IPv6 {
		return nftables.TableFamilyIPv6
	}
	return nftables.TableFamilyIPv4
}

// Number is the family of the kernel's sockets and address translations.
func (f Family) Number() byte {
	if f == IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// Len is the length of an address in bytes.
func (f Family) Len() uint32 {
	if f == IPv6 {
		return 16
	}
	return 4
}

// words is the number of narrow registers that an address takes.
func (f Family) words() uint32 { return f.Len() / 4 }

// RegA1 and RegA2 follow an address in RegA0; RegB1 follows one in RegB0.
func (f Family) RegA1() uint32 { return RegA0 + f.words() }
func (f Family) RegA2() uint32 { return f.RegA1() + 1 }
func (f Family) RegB1() uint32 { return RegB0 + f.words() }

// TypeAddr is the set type of an address.
func (f Family) TypeAddr() nftables.SetDatatype {
	if f == IPv6 {
		return nftables.TypeIP6Addr
	}
	return nftables.TypeIPAddr
}

// Set types of more than one part. In a concatenation each part is padded to four bytes.

// TypePair is of two addresses.
func (f Family) TypePair() nftables.SetDatatype {
	return nftables.MustConcatSetType(f.TypeAddr(), f.TypeAddr())
}

// TypeAddrPort is of an address and a port.
func (f Family) TypeAddrPort() nftables.SetDatatype {
	return nftables.MustConcatSetType(f.TypeAddr(), nftables.TypeInetService)
}

// TypeAddrProtPort is of an address, a protocol and a port.
func (f Family) TypeAddrProtPort() nftables.SetDatatype {
	return nftables.MustConcatSetType(f.TypeAddr(), nftables.TypeInetProto, nftables.TypeInetService)
}

// TypeProtoPort is of a protocol and a port.
var TypeProtoPort = nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService)

// Loopback is the network that never leaves a machine.
func (f Family) Loopback() netip.Prefix {
	if f == IPv6 {
		return netip.MustParsePrefix("::1/128")
	}
	return netip.MustParsePrefix("127.0.0.0/8")
}

// Multicast is the network of addresses of groups.
func (f Family) Multicast() netip.Prefix {
	if f == IPv6 {
		return netip.MustParsePrefix("ff00::/8")
	}
	return netip.MustParsePrefix("224.0.0.0/4")
}

// LinkLocal is the network of addresses that are of one link only.
func (f Family) LinkLocal() netip.Prefix {
	if f == IPv6 {
		return netip.MustParsePrefix("fe80::/10")
	}
	return netip.MustParsePrefix("169.254.0.0/16")
}

// Unreachable returns the values of ICMP errors "destination unreachable": the protocol, their
// type, and the code for a closed port.
func (f Family) Unreachable() (protocol, kind, port byte) {
	if f == IPv6 {
		return unix.IPPROTO_ICMPV6, 1, 4
	}
	return unix.IPPROTO_ICMP, 3, 3
}

package nft

import (
	"net"
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Registers. There are sixteen narrow ones (8-23); a wide one (1-4) is the name of four of them.
// Concatenated values are loaded into neighbouring narrow ones. A has room for two IPv6 addresses.
const (
	RegA  = 1 // begins with RegA0; values after an address are in a Family's RegA1, RegA2
	RegA0 = 8
	RegB  = 3 // begins with RegB0; values after an address are in a Family's RegB1
	RegB0 = 16
)

// Offsets in the headers of IPv4, IPv6 and transport protocols.
const (
	offsetSource4, offsetDestination4 = 12, 16
	offsetSource6, offsetDestination6 = 8, 24
	offsetPort                        = 2
)

// One is a step of one expression.
func One(e expr.Any) []expr.Any { return []expr.Any{e} }

// Verdict ends a rule. chain is empty except for jump and goto.
func Verdict(kind expr.VerdictKind, chain string) []expr.Any {
	return One(&expr.Verdict{Kind: kind, Chain: chain})
}

// LoadSource loads the packet's source address.
func (f Family) LoadSource(register uint32) expr.Any {
	offset := uint32(offsetSource4)
	if f == IPv6 {
		offset = offsetSource6
	}
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.Len()}
}

// LoadDestination loads the packet's destination address.
func (f Family) LoadDestination(register uint32) expr.Any {
	offset := uint32(offsetDestination4)
	if f == IPv6 {
		offset = offsetDestination6
	}
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.Len()}
}

// LoadPort loads the packet's destination port.
func LoadPort(register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offsetPort, Len: 2}
}

// LoadProtocol loads the packet's transport protocol.
func LoadProtocol(register uint32) expr.Any {
	return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}
}

// Equal continues if a register has the value.
func Equal(register uint32, value []byte) []expr.Any {
	return One(&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: value})
}

// InNetwork continues if the address in RegA is in the network, or is not.
func InNetwork(network netip.Prefix, in bool) []expr.Any {
	op := expr.CmpOpEq
	if !in {
		op = expr.CmpOpNeq
	}
	mask := net.CIDRMask(network.Bits(), network.Addr().BitLen())
	return []expr.Any{
		&expr.Bitwise{SourceRegister: RegA, DestRegister: RegA, Len: uint32(len(mask)), Mask: mask,
			Xor: make([]byte, len(mask))},
		&expr.Cmp{Op: op, Register: RegA, Data: network.Masked().Addr().AsSlice()},
	}
}

// SourceIn continues if the packet's source is in the network, or is not.
func SourceIn(network netip.Prefix, in bool) []expr.Any {
	return append(One(FamilyOf(network.Addr()).LoadSource(RegA)), InNetwork(network, in)...)
}

// DestinationIn continues if the packet's destination is in the network, or is not.
func DestinationIn(network netip.Prefix, in bool) []expr.Any {
	return append(One(FamilyOf(network.Addr()).LoadDestination(RegA)), InNetwork(network, in)...)
}

// SourceIsNode continues if the packet's source is an address of this node.
func SourceIsNode() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: RegA, ResultADDRTYPE: true, FlagSADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: RegA, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

// DestinationIsNode continues if the destination is an address of this node, except loopback.
func (f Family) DestinationIsNode() []expr.Any {
	return append([]expr.Any{
		&expr.Fib{Register: RegA, ResultADDRTYPE: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: RegA, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}, DestinationIn(f.Loopback(), false)...)
}

// States of packets in the connection tracking; a packet has one.
const (
	StateInvalid   = expr.CtStateBitINVALID
	StateNew       = expr.CtStateBitNEW
	StateUntracked = expr.CtStateBitUNTRACKED
)

// HasState continues for packets in one of the states.
func HasState(states uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: RegA, Key: expr.CtKeySTATE},
		&expr.Bitwise{SourceRegister: RegA, DestRegister: RegA, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(states), Xor: []byte{0, 0, 0, 0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: RegA, Data: []byte{0, 0, 0, 0}},
	}
}

// statusDestination is the bit of a connection whose destination has been translated:
// IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
const statusDestination = 1 << 5

// NotLed continues for packets of connections whose destination nobody has translated.
func NotLed() []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: RegA, Key: expr.CtKeySTATUS},
		&expr.Bitwise{SourceRegister: RegA, DestRegister: RegA, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(statusDestination), Xor: []byte{0, 0, 0, 0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: RegA, Data: []byte{0, 0, 0, 0}},
	}
}

// The following expressions read the connection of a packet, not the packet. It is the same for
// both directions, and for ICMP errors about the connection.

// The kernel reads the first byte of the direction, and the library writes four, the highest first.
const (
	original = 0
	reply    = 1 << 24
)

// LoadFlowSource loads the address of the connection's client.
func LoadFlowSource(register uint32) expr.Any {
	return &expr.Ct{Register: register, Key: expr.CtKeySRC, Direction: original}
}

// LoadFlowDestination loads the address of the connection's server, after its address translation.
func LoadFlowDestination(register uint32) expr.Any {
	return &expr.Ct{Register: register, Key: expr.CtKeySRC, Direction: reply}
}

// LoadFlowPort loads the port of the connection's server, after its address translation.
func LoadFlowPort(register uint32) expr.Any {
	return &expr.Ct{Register: register, Key: expr.CtKeyPROTOSRC, Direction: reply}
}

// LoadFlowProtocol loads the transport protocol of the connection.
func LoadFlowProtocol(register uint32) expr.Any {
	return &expr.Ct{Register: register, Key: expr.CtKeyPROTOCOL}
}

// InterfaceName is a name as the kernel compares it.
func InterfaceName(name string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return padded
}

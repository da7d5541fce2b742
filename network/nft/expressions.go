package nft

import (
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Registers. A wide register (1, 2) is four narrow ones (8-11, 12-15): what is
// concatenated is loaded into neighbouring narrow ones.
const (
	RegA  = 1 // wide; its parts are RegA0, RegA1, RegA2
	RegA0 = 8
	RegA1 = 9
	RegA2 = 10
	RegB  = 2 // wide; its parts are RegB0, RegB1
	RegB0 = 12
	RegB1 = 13
)

// Offsets in the IPv4 and transport headers.
const (
	offsetSource      = 12
	offsetDestination = 16
	offsetPort        = 2
)

// One is a step of one expression.
func One(e expr.Any) []expr.Any { return []expr.Any{e} }

// Verdict ends a rule. chain is empty but for jump and goto.
func Verdict(kind expr.VerdictKind, chain string) []expr.Any {
	return One(&expr.Verdict{Kind: kind, Chain: chain})
}

// LoadSource loads the packet's source address.
func LoadSource(register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offsetSource, Len: 4}
}

// LoadDestination loads the packet's destination address.
func LoadDestination(register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offsetDestination, Len: 4}
}

// LoadPort loads the packet's destination port.
func LoadPort(register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offsetPort, Len: 2}
}

// LoadProtocol loads the packet's transport protocol.
func LoadProtocol(register uint32) expr.Any {
	return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}
}

// Equal goes on when a register has the value.
func Equal(register uint32, value []byte) []expr.Any {
	return One(&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: value})
}

// InNetwork goes on when the address in RegA is in the network, or is not.
func InNetwork(network netip.Prefix, in bool) []expr.Any {
	op := expr.CmpOpEq
	if !in {
		op = expr.CmpOpNeq
	}
	mask := binaryutil.BigEndian.PutUint32(^uint32(0) << (32 - network.Bits()))
	if network.Bits() == 0 {
		mask = []byte{0, 0, 0, 0}
	}
	return []expr.Any{
		&expr.Bitwise{SourceRegister: RegA, DestRegister: RegA, Len: 4, Mask: mask, Xor: []byte{0, 0, 0, 0}},
		&expr.Cmp{Op: op, Register: RegA, Data: network.Masked().Addr().AsSlice()},
	}
}

// SourceIn goes on when the packet's source is in the network, or is not.
func SourceIn(network netip.Prefix, in bool) []expr.Any {
	return append(One(LoadSource(RegA)), InNetwork(network, in)...)
}

// DestinationIn goes on when the packet's destination is in the network, or is not.
func DestinationIn(network netip.Prefix, in bool) []expr.Any {
	return append(One(LoadDestination(RegA)), InNetwork(network, in)...)
}

// SourceIsNode goes on when the packet's source is an address of this node.
func SourceIsNode() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: RegA, ResultADDRTYPE: true, FlagSADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: RegA, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

// DestinationIsNode goes on when the destination is an address of this node,
// loopback excepted.
func DestinationIsNode() []expr.Any {
	return append([]expr.Any{
		&expr.Fib{Register: RegA, ResultADDRTYPE: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: RegA, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}, DestinationIn(netip.MustParsePrefix("127.0.0.0/8"), false)...)
}

// States of packets in the connection tracking; a packet has one.
const (
	StateInvalid   = expr.CtStateBitINVALID
	StateNew       = expr.CtStateBitNEW
	StateUntracked = expr.CtStateBitUNTRACKED
)

// HasState goes on for packets in one of the states.
func HasState(states uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: RegA, Key: expr.CtKeySTATE},
		&expr.Bitwise{SourceRegister: RegA, DestRegister: RegA, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(states), Xor: []byte{0, 0, 0, 0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: RegA, Data: []byte{0, 0, 0, 0}},
	}
}

// What follows reads the connection that a packet belongs to, not the packet. It is the same for
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

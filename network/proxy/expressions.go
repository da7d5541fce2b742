package proxy

import (
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// markHide is the bit of the packet mark that asks for this node's address as
// the source. It lives from one hook to the next and is taken off again.
const markHide = 0x4000

// Registers. A wide register (1, 2) is four narrow ones (8-11, 12-15): what is
// concatenated is loaded into neighbouring narrow ones.
const (
	regA     = 1 // wide; its parts are regA0, regA1, regA2
	regA0    = 8
	regA1    = 9
	regA2    = 10
	regB     = 2 // wide; a backend's address and port
	regBAddr = 12
	regBPort = 13
)

// Offsets in the IPv4 and transport headers.
const (
	offsetSource      = 12
	offsetDestination = 16
	offsetPort        = 2
)

func loadSource(register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offsetSource, Len: 4}
}

func loadDestination(register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offsetDestination, Len: 4}
}

func loadPort(register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offsetPort, Len: 2}
}

func loadProtocol(register uint32) expr.Any {
	return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}
}

// inNetwork goes on when the address in regA is in the network, or is not.
func inNetwork(network netip.Prefix, in bool) []expr.Any {
	op := expr.CmpOpEq
	if !in {
		op = expr.CmpOpNeq
	}
	mask := binaryutil.BigEndian.PutUint32(^uint32(0) << (32 - network.Bits()))
	if network.Bits() == 0 {
		mask = []byte{0, 0, 0, 0}
	}
	return []expr.Any{
		&expr.Bitwise{SourceRegister: regA, DestRegister: regA, Len: 4, Mask: mask, Xor: []byte{0, 0, 0, 0}},
		&expr.Cmp{Op: op, Register: regA, Data: network.Masked().Addr().AsSlice()},
	}
}

func sourceIn(network netip.Prefix, in bool) []expr.Any {
	return append([]expr.Any{loadSource(regA)}, inNetwork(network, in)...)
}

func destinationIn(network netip.Prefix, in bool) []expr.Any {
	return append([]expr.Any{loadDestination(regA)}, inNetwork(network, in)...)
}

// sourceIsNode goes on when the packet's source is an address of this node.
func sourceIsNode() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: regA, ResultADDRTYPE: true, FlagSADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regA, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

// destinationIsNode goes on when the destination is an address of this node,
// loopback excepted.
func destinationIsNode() []expr.Any {
	return append([]expr.Any{
		&expr.Fib{Register: regA, ResultADDRTYPE: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regA, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}, destinationIn(netip.MustParsePrefix("127.0.0.0/8"), false)...)
}

// isNew goes on for the first packet of a connection.
func isNew() []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: regA, Key: expr.CtKeySTATE},
		&expr.Bitwise{SourceRegister: regA, DestRegister: regA, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitNEW), Xor: []byte{0, 0, 0, 0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: regA, Data: []byte{0, 0, 0, 0}},
	}
}

// byAddr takes the verdict for destination address, protocol and port from a map.
func byAddr(name string) []expr.Any {
	return []expr.Any{
		loadDestination(regA0), loadProtocol(regA1), loadPort(regA2),
		&expr.Lookup{SourceRegister: regA, DestRegister: 0, IsDestRegSet: true, SetName: name},
	}
}

// byPort takes the verdict for protocol and port from a map, for this node's addresses.
func byPort(name string) []expr.Any {
	return append(destinationIsNode(),
		loadProtocol(regA0), loadPort(regA1),
		&expr.Lookup{SourceRegister: regA, DestRegister: 0, IsDestRegSet: true, SetName: name},
	)
}

func verdict(kind expr.VerdictKind, chain string) expr.Any {
	return &expr.Verdict{Kind: kind, Chain: chain}
}

// setMark sets or clears markHide.
func setMark(on bool) []expr.Any {
	xor := uint32(0)
	if on {
		xor = markHide
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: regA},
		&expr.Bitwise{SourceRegister: regA, DestRegister: regA, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(^uint32(markHide)), Xor: binaryutil.NativeEndian.PutUint32(xor)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: regA, SourceRegister: true},
	}
}

// isMarked goes on for packets with markHide.
func isMarked() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: regA},
		&expr.Bitwise{SourceRegister: regA, DestRegister: regA, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(markHide), Xor: []byte{0, 0, 0, 0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: regA, Data: []byte{0, 0, 0, 0}},
	}
}

// translate sends the connection to the backend in regB.
func translate() expr.Any {
	return &expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: regBAddr, RegProtoMin: regBPort, Specified: true}
}

// remember notes, or renews, the backend in regB for the client's address.
func remember(chain string, timeout time.Duration) []expr.Any {
	return []expr.Any{
		loadSource(regA),
		&expr.Dynset{SrcRegKey: regA, SrcRegData: regB, SetName: affinityName(chain),
			Operation: uint32(unix.NFT_DYNSET_OP_UPDATE), Timeout: timeout},
	}
}

// recall loads into regB the backend that the client was led to before, and
// goes on only when there is one.
func recall(chain string) []expr.Any {
	return []expr.Any{
		loadSource(regA),
		&expr.Lookup{SourceRegister: regA, DestRegister: regB, IsDestRegSet: true, SetName: affinityName(chain)},
	}
}

// choose loads one of the backends into regB by chance.
func (tx *transaction) choose(backends []Backend) []expr.Any {
	if len(backends) == 1 {
		return []expr.Any{
			&expr.Immediate{Register: regBAddr, Data: backends[0].Addr.AsSlice()},
			&expr.Immediate{Register: regBPort, Data: binaryutil.BigEndian.PutUint16(backends[0].Port)},
		}
	}
	// The kernel takes at most 64 KiB in one attribute, so many backends are added
	// in pieces; the size is said because the library takes the first piece for all.
	set := &nftables.Set{
		Table: tx.table, Anonymous: true, Constant: true, IsMap: true, Size: uint32(len(backends)),
		KeyType: nftables.TypeInteger, DataType: typeBackend, KeyByteOrder: binaryutil.NativeEndian,
	}
	elements := make([]nftables.SetElement, len(backends))
	for i, backend := range backends {
		elements[i] = nftables.SetElement{Key: binary.NativeEndian.AppendUint32(nil, uint32(i)), Val: backendValue(backend)}
	}
	if err := tx.AddSet(set, elements[:min(len(elements), elementChunk)]); err != nil {
		tx.fail(err)
	}
	if len(elements) > elementChunk {
		more := *set
		more.Anonymous = false // the library's rule; the kernel allows it within the transaction
		tx.addElements(&more, elements[elementChunk:])
	}
	return []expr.Any{
		&expr.Numgen{Register: regA, Modulus: uint32(len(backends)), Type: unix.NFT_NG_RANDOM},
		&expr.Lookup{SourceRegister: regA, DestRegister: regB, IsDestRegSet: true, SetName: set.Name, SetID: set.ID},
	}
}

func protocolNumber(protocol corev1.Protocol) byte {
	switch protocol {
	case corev1.ProtocolUDP:
		return unix.IPPROTO_UDP
	case corev1.ProtocolSCTP:
		return unix.IPPROTO_SCTP
	default:
		return unix.IPPROTO_TCP
	}
}

func chunks(elements []nftables.SetElement) iter.Seq[[]nftables.SetElement] {
	return slices.Chunk(elements, elementChunk)
}

package proxy

import (
	"encoding/binary"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/network/nft"
)

// markHide is the bit of the packet mark that asks for this node's address as
// the source. It lives from one hook to the next and is taken off again.
const markHide = 0x4000

// byAddr takes the verdict for destination address, protocol and port from a map.
func (tx transaction) byAddr(name string) []expr.Any {
	return []expr.Any{
		tx.Family.LoadDestination(nft.RegA0), nft.LoadProtocol(tx.Family.RegA1()), nft.LoadPort(tx.Family.RegA2()),
		&expr.Lookup{SourceRegister: nft.RegA, DestRegister: 0, IsDestRegSet: true, SetName: name},
	}
}

// byPort takes the verdict for protocol and port from a map, for this node's addresses.
func (tx transaction) byPort(name string) []expr.Any {
	return append(tx.Family.DestinationIsNode(),
		nft.LoadProtocol(nft.RegA0), nft.LoadPort(nft.RegA0+1),
		&expr.Lookup{SourceRegister: nft.RegA, DestRegister: 0, IsDestRegSet: true, SetName: name},
	)
}

// setMark sets or clears markHide.
func setMark(on bool) []expr.Any {
	xor := uint32(0)
	if on {
		xor = markHide
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: nft.RegA},
		&expr.Bitwise{SourceRegister: nft.RegA, DestRegister: nft.RegA, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(^uint32(markHide)), Xor: binaryutil.NativeEndian.PutUint32(xor)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: nft.RegA, SourceRegister: true},
	}
}

// isMarked continues for packets with markHide.
func isMarked() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: nft.RegA},
		&expr.Bitwise{SourceRegister: nft.RegA, DestRegister: nft.RegA, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(markHide), Xor: []byte{0, 0, 0, 0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: nft.RegA, Data: []byte{0, 0, 0, 0}},
	}
}

// translate sends the connection to the backend in nft.RegB.
func (tx transaction) translate() expr.Any {
	return &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(tx.Family.Number()), RegAddrMin: nft.RegB0,
		RegProtoMin: tx.Family.RegB1(), Specified: true}
}

// remember notes, or renews, the backend in nft.RegB for the client's address.
func (tx transaction) remember(chain string, timeout time.Duration) []expr.Any {
	return []expr.Any{
		tx.Family.LoadSource(nft.RegA),
		&expr.Dynset{SrcRegKey: nft.RegA, SrcRegData: nft.RegB, SetName: affinityName(chain),
			Operation: uint32(unix.NFT_DYNSET_OP_UPDATE), Timeout: timeout},
	}
}

// recall loads the client's previous backend into nft.RegB, and continues only if there is one.
func (tx transaction) recall(chain string) []expr.Any {
	return []expr.Any{
		tx.Family.LoadSource(nft.RegA),
		&expr.Lookup{SourceRegister: nft.RegA, DestRegister: nft.RegB, IsDestRegSet: true,
			SetName: affinityName(chain)},
	}
}

// few is the largest number of backends with a rule each. More of them are in a map, in which a
// connection finds its backend by one look-up. But the kernel visits all sets of the table for each
// new one, so that the first write of ten thousand maps takes minutes.
const few = 16

// ways are the beginnings of rules of which a random one continues, with a backend in nft.RegB.
func (tx transaction) ways(backends []Backend) [][]expr.Any {
	if len(backends) > few {
		return [][]expr.Any{tx.choose(backends)}
	}
	var ways [][]expr.Any
	for i := range backends {
		way := tx.choose(backends[i : i+1])
		if left := len(backends) - i; left > 1 { // each of the remaining ones has the same chance
			way = append([]expr.Any{
				&expr.Numgen{Register: nft.RegA, Modulus: uint32(left), Type: unix.NFT_NG_RANDOM},
				&expr.Cmp{Op: expr.CmpOpEq, Register: nft.RegA, Data: []byte{0, 0, 0, 0}},
			}, way...)
		}
		ways = append(ways, way)
	}
	return ways
}

// choose loads one of the backends into nft.RegB by chance.
func (tx transaction) choose(backends []Backend) []expr.Any {
	if len(backends) == 1 {
		return []expr.Any{
			&expr.Immediate{Register: nft.RegB0, Data: backends[0].Addr.AsSlice()},
			&expr.Immediate{Register: tx.Family.RegB1(), Data: binaryutil.BigEndian.PutUint16(backends[0].Port)},
		}
	}
	// The kernel takes at most 64 KiB in one attribute, so many backends are added in pieces. The
	// size is set because the library takes the first piece for all.
	set := &nftables.Set{
		Table: tx.Table, Anonymous: true, Constant: true, IsMap: true, Size: uint32(len(backends)),
		KeyType: nftables.TypeInteger, DataType: tx.Family.TypeAddrPort(), KeyByteOrder: binaryutil.NativeEndian,
	}
	elements := make([]nftables.SetElement, len(backends))
	for i, backend := range backends {
		elements[i] = nftables.SetElement{Key: binary.NativeEndian.AppendUint32(nil, uint32(i)),
			Val: nft.AddrPortKey(backend.Addr, backend.Port)}
	}
	if err := tx.AddSet(set, elements[:min(len(elements), nft.Chunk)]); err != nil {
		tx.Fail(err)
	}
	if len(elements) > nft.Chunk {
		more := *set
		more.Anonymous = false // the library's rule; the kernel allows it within the transaction
		tx.AddElements(&more, elements[nft.Chunk:])
	}
	return []expr.Any{
		&expr.Numgen{Register: nft.RegA, Modulus: uint32(len(backends)), Type: unix.NFT_NG_RANDOM},
		&expr.Lookup{SourceRegister: nft.RegA, DestRegister: nft.RegB, IsDestRegSet: true, SetName: set.Name,
			SetID: set.ID},
	}
}

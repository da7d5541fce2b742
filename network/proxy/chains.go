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

// fill writes a Chain's rules, in the order of its fields.
func (tx transaction) fill(name string, c Chain, t table) {
	chain := &nftables.Chain{Name: name, Table: tx.Table}
	if len(c.Sources) > 0 {
		tx.Rule(chain, nft.SourceIsNode(), nft.Verdict(expr.VerdictGoto, c.Next))
		for _, source := range c.Sources {
			tx.Rule(chain, nft.SourceIn(source, true), nft.Verdict(expr.VerdictGoto, c.Next))
		}
		tx.Rule(chain, nft.Verdict(expr.VerdictDrop, ""))
		return
	}
	if c.Cluster != "" {
		tx.Rule(chain, nft.SourceIn(t.podNetwork, true), nft.Verdict(expr.VerdictGoto, c.Cluster))
		tx.Rule(chain, nft.SourceIsNode(), nft.Verdict(expr.VerdictGoto, c.Cluster))
	}
	if c.HideForeign {
		tx.Rule(chain, nft.SourceIn(t.podNetwork, false), setMark(true))
	}
	switch {
	case c.Next != "":
		tx.Rule(chain, nft.Verdict(expr.VerdictGoto, c.Next))
	case len(c.Backends) == 0:
		tx.Rule(chain, nft.Verdict(expr.VerdictDrop, ""))
	case c.Affinity != 0:
		tx.Rule(chain, tx.recall(name), tx.remember(name, c.Affinity), nft.One(tx.translate()))
		for _, way := range tx.ways(c.Backends) {
			tx.Rule(chain, way, tx.remember(name, c.Affinity), nft.One(tx.translate()))
		}
	default:
		for _, way := range tx.ways(c.Backends) {
			tx.Rule(chain, way, nft.One(tx.translate()))
		}
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

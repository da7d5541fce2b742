package proxy

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/network/nft"
)

// skeleton writes the parts that do not depend on services.
//
//	new connection ─▶ prerouting, output (nat) ─▶ services ─▶ a Chain ─▶ backend
//	                  forward, input, output (filter) ─▶ refuse ─▶ reject or drop
//	leaving packet ─▶ postrouting (nat) ─▶ source hidden or not
func (tx transaction) skeleton(t table) {
	for _, name := range []string{mapAddrs, mapPorts, mapNoAddrs, mapNoPorts} {
		tx.MakeSet(tx.verdictMap(name))
	}
	tx.MakeSet(tx.hairpins())

	services := tx.AddChain(&nftables.Chain{Name: chainServices, Table: tx.Table})
	tx.Rule(services, tx.byAddr(mapAddrs))
	tx.Rule(services, tx.byPort(mapPorts))

	reject := tx.AddChain(&nftables.Chain{Name: chainReject, Table: tx.Table})
	tx.Rule(reject,
		nft.One(nft.LoadProtocol(nft.RegA)), nft.Equal(nft.RegA, []byte{unix.IPPROTO_TCP}),
		nft.One(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}))
	_, _, nobody := tx.Family.Unreachable()
	tx.Rule(reject, nft.One(&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: nobody}))

	refuse := tx.AddChain(&nftables.Chain{Name: chainRefuse, Table: tx.Table})
	tx.Rule(refuse, tx.byAddr(mapNoAddrs))
	tx.Rule(refuse, tx.byPort(mapNoPorts))
	// A service address that remains here belongs to no service.
	tx.Rule(refuse, nft.DestinationIn(t.serviceNetwork, true), nft.Verdict(expr.VerdictGoto, chainReject))

	tx.Rule(
		tx.Hook("prerouting-nat", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest),
		nft.Verdict(expr.VerdictJump, chainServices))
	tx.Rule(tx.Hook("output-nat", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest),
		nft.Verdict(expr.VerdictJump, chainServices))
	for name, at := range map[string]*nftables.ChainHook{
		"input": nftables.ChainHookInput, "forward": nftables.ChainHookForward, "output": nftables.ChainHookOutput,
	} {
		// What was led to this node's gateway for an address of a Gateway has the node's
		// destination now, and is not for a Service there.
		tx.Rule(tx.Hook(name, nftables.ChainTypeFilter, at, nftables.ChainPriorityFilter),
			nft.HasState(nft.StateNew), nft.NotLed(), nft.Verdict(expr.VerdictJump, chainRefuse))
	}
	tx.quiet(t)
	tx.private(t)
	tx.postrouting(t)
}

// quiet suppresses the kernel's refusals at addresses that the node itself answers at. Barque is
// restarting then, and this table outlives it: clients without an answer ask again within seconds,
// and refused ones give up.
func (tx transaction) quiet(t table) {
	chain := tx.Hook("quiet", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter)
	protocol, unreachable, _ := tx.Family.Unreachable()
	for _, addr := range t.local {
		tx.Rule(chain,
			nft.SourceIn(netip.PrefixFrom(addr, addr.BitLen()), true),
			nft.One(nft.LoadProtocol(nft.RegA)), nft.Equal(nft.RegA, []byte{protocol}),
			nft.One(&expr.Payload{DestRegister: nft.RegA, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1}),
			nft.Equal(nft.RegA, []byte{unreachable}),
			nft.Verdict(expr.VerdictDrop, ""))
	}
}

// private keeps other machines from the addresses that the node itself answers at. The kernel
// answers ARP for them on every link, so a neighbour only needs a route. The chain sees packets
// before their translation, so those to a service's address are not affected.
func (tx transaction) private(t table) {
	chain := tx.Hook("private", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	for _, addr := range t.local {
		tx.Rule(chain,
			nft.DestinationIn(netip.PrefixFrom(addr, addr.BitLen()), true),
			nft.One(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: nft.RegA}),
			nft.One(&expr.Cmp{Op: expr.CmpOpNeq, Register: nft.RegA, Data: nft.InterfaceName("lo")}),
			nft.SourceIn(t.podNetwork, false),
			nft.Verdict(expr.VerdictDrop, ""))
	}
}

// markHide is the bit of the packet mark that asks for this node's address as
// the source. It lives from one hook to the next and is taken off again.
const markHide = 0x4000

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

// postrouting hides the source of connections whose answers would otherwise not come back through
// this node.
func (tx transaction) postrouting(t table) {
	chain := tx.Hook("postrouting-nat", nftables.ChainTypeNAT, nftables.ChainHookPostrouting,
		nftables.ChainPriorityNATSource)
	masquerade := nft.One(&expr.Masq{FullyRandom: true})
	// Packets that stay on this node keep their source.
	tx.Rule(chain,
		nft.One(&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: nft.RegA}),
		nft.Equal(nft.RegA, nft.InterfaceName("lo")),
		nft.Verdict(expr.VerdictAccept, ""))
	// Led to a pod from outside the pod network.
	tx.Rule(chain, isMarked(), setMark(false), masquerade)
	// A pod that reached itself through a service.
	tx.Rule(chain,
		[]expr.Any{tx.Family.LoadSource(nft.RegA0), tx.Family.LoadDestination(tx.Family.RegA1()),
			&expr.Lookup{SourceRegister: nft.RegA, SetName: setHairpins}},
		masquerade)
	// A pod that connects to the outside: outside hosts have no route to pods.
	if t.routable {
		return
	}
	tx.Rule(chain, nft.SourceIn(t.podNetwork, true), nft.DestinationIn(t.podNetwork, false),
		nft.DestinationIn(tx.Family.Multicast(), false), masquerade)
}

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

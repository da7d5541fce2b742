package proxy

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/network/nft"
)

// skeleton writes what does not depend on any service.
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
	tx.Rule(services, byAddr(mapAddrs))
	tx.Rule(services, byPort(mapPorts))

	reject := tx.AddChain(&nftables.Chain{Name: chainReject, Table: tx.Table})
	tx.Rule(reject,
		nft.One(nft.LoadProtocol(nft.RegA)), nft.Equal(nft.RegA, []byte{unix.IPPROTO_TCP}),
		nft.One(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}))
	tx.Rule(reject, nft.One(&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: icmpPortUnreachable}))

	refuse := tx.AddChain(&nftables.Chain{Name: chainRefuse, Table: tx.Table})
	tx.Rule(refuse, byAddr(mapNoAddrs))
	tx.Rule(refuse, byPort(mapNoPorts))
	// A service address that still stands here belongs to no service.
	tx.Rule(refuse, nft.DestinationIn(t.serviceNetwork, true), nft.Verdict(expr.VerdictGoto, chainReject))

	tx.Rule(tx.Hook("prerouting-nat", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest),
		nft.Verdict(expr.VerdictJump, chainServices))
	tx.Rule(tx.Hook("output-nat", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest),
		nft.Verdict(expr.VerdictJump, chainServices))
	for name, at := range map[string]*nftables.ChainHook{
		"input": nftables.ChainHookInput, "forward": nftables.ChainHookForward, "output": nftables.ChainHookOutput,
	} {
		tx.Rule(tx.Hook(name, nftables.ChainTypeFilter, at, nftables.ChainPriorityFilter),
			nft.HasState(nft.StateNew), nft.Verdict(expr.VerdictJump, chainRefuse))
	}
	tx.quiet(t)
	tx.private(t)
	tx.postrouting(t)
}

// quiet keeps the kernel from telling clients that nobody listens at an address that the node itself
// answers at. Barque is starting anew then, and this table outlives it: clients that hear nothing ask
// again within seconds, and those that are refused give up.
func (tx transaction) quiet(t table) {
	chain := tx.Hook("quiet", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter)
	for _, addr := range t.local {
		tx.Rule(chain,
			nft.SourceIn(netip.PrefixFrom(addr, addr.BitLen()), true),
			nft.One(nft.LoadProtocol(nft.RegA)), nft.Equal(nft.RegA, []byte{unix.IPPROTO_ICMP}),
			nft.One(&expr.Payload{DestRegister: nft.RegA, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1}),
			nft.Equal(nft.RegA, []byte{icmpUnreachable}),
			nft.Verdict(expr.VerdictDrop, ""))
	}
}

// private keeps other machines from the addresses that the node itself answers at. The kernel answers
// ARP for them on every link, so that a neighbour needs no more than a route. The chain sees packets
// before they are led anywhere: those to a service's address are not its matter.
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

// icmpUnreachable is ICMP's type of all errors of the kind "cannot be reached".
const icmpUnreachable = 3

// icmpPortUnreachable is ICMP's code for "nobody listens there".
const icmpPortUnreachable = 3

// postrouting hides the source of connections whose answers would otherwise not
// come back through this node.
func (tx transaction) postrouting(t table) {
	chain := tx.Hook("postrouting-nat", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	masquerade := nft.One(&expr.Masq{FullyRandom: true})
	// What stays on this node keeps its source.
	tx.Rule(chain,
		nft.One(&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: nft.RegA}),
		nft.Equal(nft.RegA, nft.InterfaceName("lo")),
		nft.Verdict(expr.VerdictAccept, ""))
	// Led to a pod from outside the pod network.
	tx.Rule(chain, isMarked(), setMark(false), masquerade)
	// A pod that reached itself through a service.
	tx.Rule(chain,
		[]expr.Any{nft.LoadSource(nft.RegA0), nft.LoadDestination(nft.RegA1), &expr.Lookup{SourceRegister: nft.RegA, SetName: setHairpins}},
		masquerade)
	// A pod that speaks to the world: nobody out there has a route to pods.
	tx.Rule(chain, nft.SourceIn(t.podNetwork, true), nft.DestinationIn(t.podNetwork, false),
		nft.DestinationIn(netip.MustParsePrefix("224.0.0.0/4"), false), masquerade)
}

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
		tx.Rule(chain, recall(name), remember(name, c.Affinity), nft.One(translate()))
		tx.Rule(chain, tx.choose(c.Backends), remember(name, c.Affinity), nft.One(translate()))
	default:
		tx.Rule(chain, tx.choose(c.Backends), nft.One(translate()))
	}
}

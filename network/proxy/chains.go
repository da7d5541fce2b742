package proxy

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// rule appends a rule made of steps to a chain.
func (tx *transaction) rule(chain *nftables.Chain, steps ...[]expr.Any) {
	tx.AddRule(&nftables.Rule{Table: tx.table, Chain: chain, Exprs: slices.Concat(steps...)})
}

func one(e expr.Any) []expr.Any { return []expr.Any{e} }

// skeleton writes what does not depend on any service.
//
//	new connection ─▶ prerouting, output (nat) ─▶ services ─▶ a Chain ─▶ backend
//	                  forward, input, output (filter) ─▶ refuse ─▶ reject or drop
//	leaving packet ─▶ postrouting (nat) ─▶ source hidden or not
func (tx *transaction) skeleton(t table) {
	for _, name := range []string{mapAddrs, mapPorts, mapNoAddrs, mapNoPorts} {
		tx.addSet(tx.verdictMap(name))
	}
	tx.addSet(tx.hairpins())

	services := tx.AddChain(&nftables.Chain{Name: chainServices, Table: tx.table})
	tx.rule(services, byAddr(mapAddrs))
	tx.rule(services, byPort(mapPorts))

	reject := tx.AddChain(&nftables.Chain{Name: chainReject, Table: tx.table})
	tx.rule(reject,
		one(loadProtocol(regA)), one(&expr.Cmp{Op: expr.CmpOpEq, Register: regA, Data: []byte{unix.IPPROTO_TCP}}),
		one(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}))
	tx.rule(reject, one(&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: icmpPortUnreachable}))

	refuse := tx.AddChain(&nftables.Chain{Name: chainRefuse, Table: tx.table})
	tx.rule(refuse, byAddr(mapNoAddrs))
	tx.rule(refuse, byPort(mapNoPorts))
	// A service address that still stands here belongs to no service.
	tx.rule(refuse, destinationIn(t.serviceNetwork, true), one(verdict(expr.VerdictGoto, chainReject)))

	tx.hook("prerouting-nat", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest,
		one(verdict(expr.VerdictJump, chainServices)))
	tx.hook("output-nat", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest,
		one(verdict(expr.VerdictJump, chainServices)))
	for name, at := range map[string]*nftables.ChainHook{
		"input": nftables.ChainHookInput, "forward": nftables.ChainHookForward, "output": nftables.ChainHookOutput,
	} {
		tx.hook(name, nftables.ChainTypeFilter, at, nftables.ChainPriorityFilter,
			append(isNew(), verdict(expr.VerdictJump, chainRefuse)))
	}
	tx.quiet(t)
	tx.postrouting(t)
}

// quiet keeps the kernel from telling clients that nobody listens at an address that the node itself
// answers at. Barque is starting anew then, and this table outlives it: clients that hear nothing ask
// again within seconds, and those that are refused give up.
func (tx *transaction) quiet(t table) {
	chain := tx.hook("quiet", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter, nil)
	for _, addr := range t.local {
		tx.rule(chain,
			sourceIn(netip.PrefixFrom(addr, addr.BitLen()), true),
			one(loadProtocol(regA)), one(&expr.Cmp{Op: expr.CmpOpEq, Register: regA, Data: []byte{unix.IPPROTO_ICMP}}),
			one(&expr.Payload{DestRegister: regA, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1}),
			one(&expr.Cmp{Op: expr.CmpOpEq, Register: regA, Data: []byte{icmpUnreachable}}),
			one(verdict(expr.VerdictDrop, "")))
	}
}

// icmpUnreachable is ICMP's type of all errors of the kind "cannot be reached".
const icmpUnreachable = 3

// icmpPortUnreachable is ICMP's code for "nobody listens there".
const icmpPortUnreachable = 3

// hook makes a base chain of one rule.
func (tx *transaction) hook(name string, kind nftables.ChainType, at *nftables.ChainHook, priority *nftables.ChainPriority, steps []expr.Any) *nftables.Chain {
	chain := tx.AddChain(&nftables.Chain{Name: name, Table: tx.table, Type: kind, Hooknum: at, Priority: priority})
	if steps != nil {
		tx.rule(chain, steps)
	}
	return chain
}

// postrouting hides the source of connections whose answers would otherwise not
// come back through this node.
func (tx *transaction) postrouting(t table) {
	chain := tx.hook("postrouting-nat", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource, nil)
	masquerade := one(&expr.Masq{FullyRandom: true})
	// What stays on this node keeps its source.
	tx.rule(chain,
		one(&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: regA}),
		one(&expr.Cmp{Op: expr.CmpOpEq, Register: regA, Data: interfaceName("lo")}),
		one(verdict(expr.VerdictAccept, "")))
	// Led to a pod from outside the pod network.
	tx.rule(chain, isMarked(), setMark(false), masquerade)
	// A pod that reached itself through a service.
	tx.rule(chain,
		[]expr.Any{loadSource(regA0), loadDestination(regA1), &expr.Lookup{SourceRegister: regA, SetName: setHairpins}},
		masquerade)
	// A pod that speaks to the world: nobody out there has a route to pods.
	tx.rule(chain, sourceIn(t.podNetwork, true), destinationIn(t.podNetwork, false),
		destinationIn(netip.MustParsePrefix("224.0.0.0/4"), false), masquerade)
}

func interfaceName(name string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return padded
}

// fill writes a Chain's rules, in the order of its fields.
func (tx *transaction) fill(name string, c Chain, t table) {
	chain := &nftables.Chain{Name: name, Table: tx.table}
	if len(c.Sources) > 0 {
		tx.rule(chain, sourceIsNode(), one(verdict(expr.VerdictGoto, c.Next)))
		for _, source := range c.Sources {
			tx.rule(chain, sourceIn(source, true), one(verdict(expr.VerdictGoto, c.Next)))
		}
		tx.rule(chain, one(verdict(expr.VerdictDrop, "")))
		return
	}
	if c.Cluster != "" {
		tx.rule(chain, sourceIn(t.podNetwork, true), one(verdict(expr.VerdictGoto, c.Cluster)))
		tx.rule(chain, sourceIsNode(), one(verdict(expr.VerdictGoto, c.Cluster)))
	}
	if c.HideForeign {
		tx.rule(chain, sourceIn(t.podNetwork, false), setMark(true))
	}
	switch {
	case c.Next != "":
		tx.rule(chain, one(verdict(expr.VerdictGoto, c.Next)))
	case len(c.Backends) == 0:
		tx.rule(chain, one(verdict(expr.VerdictDrop, "")))
	case c.Affinity != 0:
		tx.rule(chain, recall(name), remember(name, c.Affinity), one(translate()))
		tx.rule(chain, tx.choose(c.Backends), remember(name, c.Affinity), one(translate()))
	default:
		tx.rule(chain, tx.choose(c.Backends), one(translate()))
	}
}

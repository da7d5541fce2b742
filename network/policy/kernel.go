package policy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"github.com/barque/barque/network/nft"
	"github.com/barque/barque/network/wireguard"
)

// TableName is the name of the nftables tables of network policies, one of each family.
const TableName = "barque-policy"

// Names in the table besides those of policies, profiles and sets, which have a slash.
const (
	mapIn       = "ingress"  // address → profile
	mapOut      = "egress"   // address → profile
	setIsolated = "isolated" // address . address
)

// Priorities of the hooks: after address translation and the service proxy.
const (
	priorityEgress  = nftables.ChainPriority(10)
	priorityIngress = nftables.ChainPriority(11)
)

// tables write Rules into the kernel: one table for each family, in one transaction each time.
type tables struct {
	writer   *nft.Writer
	families []nft.Family
	dns      netip.Addr // where the node answers for cluster DNS; not valid without
}

type transaction struct{ *nft.Tx }

func (t tables) begin(family nft.Family) (transaction, error) {
	tx, err := t.writer.Begin(nft.Name{Family: family, Table: TableName})
	return transaction{tx}, err
}

// replace writes the whole tables. own are the node's shares of the pod network.
func (t tables) replace(rules Rules, own []netip.Prefix) error {
	for _, family := range t.families {
		tx, err := t.begin(family)
		if err != nil {
			return err
		}
		tx.Clear()
		tx.skeleton(t, own)
		tx.apply(diff(emptyRules(), rules, everything(rules)))
		if err := tx.Commit("write the network policies"); err != nil {
			return err
		}
	}
	return nil
}

// change brings the tables from one state to the next.
func (t tables) change(delta Delta) error {
	for _, family := range t.families {
		tx, err := t.begin(family)
		if err != nil {
			return err
		}
		tx.apply(delta)
		if err := tx.Commit("change the network policies"); err != nil {
			return err
		}
	}
	return nil
}

// Purge removes the tables: all traffic is allowed then. A missing table is no error.
func Purge() error {
	w := new(nft.Writer)
	return errors.Join(w.Purge(nft.Name{Family: nft.IPv4, Table: TableName}),
		w.Purge(nft.Name{Family: nft.IPv6, Table: TableName}))
}

// skeleton writes the parts that do not depend on policies. own are the node's shares of the pod
// network.
//
//	from a pod's link ─▶ prerouting (raw) ─▶ dropped unless the source is the pod's address
//	in clear ─▶ prerouting (raw) ─▶ dropped if WireGuard leads to the source
//	to another address than the node's ─▶ forward ─▶ profile of the client, if it is a pod of this node
//	                                            ─▶ profile of the server, if it is one
//	to cluster DNS on the node ─▶ input ─▶ profile of the client
//
// Each packet is judged by its connection, in either direction. So a forbidden connection ends at
// once, and answers need no rule.
func (tx transaction) skeleton(t tables, own []netip.Prefix) {
	tx.MakeSet(tx.isolations(mapIn))
	tx.MakeSet(tx.isolations(mapOut))
	tx.MakeSet(tx.isolated())
	tx.genuine()

	accept, drop := nft.Verdict(expr.VerdictAccept, ""), nft.Verdict(expr.VerdictDrop, "")
	isolated := nft.One(&expr.Lookup{SourceRegister: nft.RegA, SetName: setIsolated})
	itself := append([]expr.Any{nft.LoadFlowSource(nft.RegA0), nft.LoadFlowDestination(tx.Family.RegA1())}, isolated...)
	judge := func(address expr.Any, by string) []expr.Any {
		return []expr.Any{address, &expr.Lookup{SourceRegister: nft.RegA, IsDestRegSet: true, SetName: by}}
	}
	client, server := nft.LoadFlowSource(nft.RegA), nft.LoadFlowDestination(nft.RegA)
	refuseUnknown := func(chain *nftables.Chain, address expr.Any, steps ...[]expr.Any) {
		for _, share := range own {
			if tx.Family.Has(share.Addr()) {
				tx.Rule(chain, append(steps, nft.One(address), nft.InNetwork(share, true), drop)...)
			}
		}
	}

	egress := tx.Hook("forward-egress", nftables.ChainTypeFilter, nftables.ChainHookForward,
		nftables.ChainPriorityRef(priorityEgress))
	// Without a connection no rule can judge.
	lost := nft.HasState(nft.StateInvalid | nft.StateUntracked)
	tx.Rule(egress, lost, []expr.Any{tx.Family.LoadSource(nft.RegA0), tx.Family.LoadSource(tx.Family.RegA1())},
		isolated, drop)
	tx.Rule(egress, lost,
		[]expr.Any{tx.Family.LoadDestination(nft.RegA0), tx.Family.LoadDestination(tx.Family.RegA1())}, isolated, drop)
	tx.Rule(egress, itself, accept)
	tx.Rule(egress, judge(client, mapOut))
	refuseUnknown(egress, client)

	ingress := tx.Hook("forward-ingress", nftables.ChainTypeFilter, nftables.ChainHookForward,
		nftables.ChainPriorityRef(priorityIngress))
	tx.Rule(ingress, itself, accept)
	tx.Rule(ingress, judge(server, mapIn))
	refuseUnknown(ingress, server)

	if tx.Family.Has(t.dns) {
		input := tx.Hook("input-dns", nftables.ChainTypeFilter, nftables.ChainHookInput,
			nftables.ChainPriorityRef(priorityEgress))
		questions := nft.DestinationIn(netip.PrefixFrom(t.dns, t.dns.BitLen()), true)
		tx.Rule(input, questions, judge(client, mapOut))
		refuseUnknown(input, client, questions)
	}
}

// genuine drops a pod's packets from an address that is not routed to it, and clear packets from an
// address behind WireGuard.
func (tx transaction) genuine() {
	chain := tx.Hook("prerouting-source", nftables.ChainTypeFilter, nftables.ChainHookPrerouting,
		nftables.ChainPriorityRaw)
	const links = "veth"       // as the ptp plugin names the node's ends of the pods' links
	if tx.Family == nft.IPv6 { // neighbours find each other by these addresses, which are of the link alone
		tx.Rule(chain, nft.SourceIn(tx.Family.LinkLocal(), true), nft.Verdict(expr.VerdictAccept, ""))
	}
	tx.Rule(chain,
		nft.One(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: nft.RegA}), nft.Equal(nft.RegA, []byte(links)),
		nft.One(&expr.Fib{Register: nft.RegA, ResultOIF: true, FlagSADDR: true, FlagIIF: true}),
		nft.Equal(nft.RegA, binary.NativeEndian.AppendUint32(nil, 0)),
		nft.Verdict(expr.VerdictDrop, ""))
	// Without that link no route leads there, and the rule holds for no packet.
	tunnel := nft.InterfaceName(wireguard.LinkName)
	tx.Rule(chain,
		[]expr.Any{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: nft.RegA},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: nft.RegA, Data: tunnel},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: nft.RegA, Data: nft.InterfaceName("lo")},
			&expr.Fib{Register: nft.RegA, ResultOIFNAME: true, FlagSADDR: true},
		},
		nft.Equal(nft.RegA, tunnel),
		nft.Verdict(expr.VerdictDrop, ""))
}

// apply adds everything that others refer to before it is referred to, and removes it after.
func (tx transaction) apply(d Delta) {
	for _, name := range d.AddSets {
		tx.MakeSet(tx.members(name))
	}
	for name, elements := range d.AddElements {
		tx.AddElements(tx.members(name), tx.elementsOf(name, elements))
	}
	for name, elements := range d.DelElements {
		tx.DeleteElements(tx.members(name), tx.elementsOf(name, elements))
	}
	for name, c := range d.SetPolicies {
		tx.setPolicy(name, c)
	}
	for name, policies := range d.AddProfiles {
		chain := tx.AddChain(tx.Chain(name))
		for _, policy := range policies {
			tx.Rule(chain, nft.Verdict(expr.VerdictJump, policy))
		}
		tx.Rule(chain, nft.Verdict(expr.VerdictDrop, ""))
	}
	tx.setPods(d.SetPods)
	for _, name := range d.DelProfiles {
		tx.FlushChain(tx.Chain(name))
		tx.DelChain(tx.Chain(name))
	}
	for name, c := range d.DelPolicies {
		tx.setPolicy(name, c)
	}
	for _, name := range d.DelSets {
		tx.DelSet(tx.members(name))
	}
}

// setPods changes which profiles hold for pods.
func (tx transaction) setPods(pods map[netip.Addr]isolationChange) {
	var del, add struct{ in, out, isolated []nftables.SetElement }
	for addr, c := range pods {
		if !tx.Family.Has(addr) {
			continue
		}
		if c.from != nil {
			del.in = append(del.in, nftables.SetElement{Key: addr.AsSlice()})
			del.out = append(del.out, nftables.SetElement{Key: addr.AsSlice()})
			if *c.from != (Isolation{}) {
				del.isolated = append(del.isolated, nftables.SetElement{Key: nft.PairKey(addr)})
			}
		}
		if c.to != nil {
			add.in = append(add.in, nftables.SetElement{Key: addr.AsSlice(), VerdictData: through(c.to.Ingress)})
			add.out = append(add.out, nftables.SetElement{Key: addr.AsSlice(), VerdictData: through(c.to.Egress)})
			if *c.to != (Isolation{}) {
				add.isolated = append(add.isolated, nftables.SetElement{Key: nft.PairKey(addr)})
			}
		}
	}
	tx.DeleteElements(tx.isolations(mapIn), del.in)
	tx.DeleteElements(tx.isolations(mapOut), del.out)
	tx.DeleteElements(tx.isolated(), del.isolated)
	tx.AddElements(tx.isolations(mapIn), add.in)
	tx.AddElements(tx.isolations(mapOut), add.out)
	tx.AddElements(tx.isolated(), add.isolated)
}

// through is the verdict for a pod with the profile, or without any.
func through(profile string) *expr.Verdict {
	if profile == "" {
		return &expr.Verdict{Kind: expr.VerdictAccept}
	}
	return &expr.Verdict{Kind: expr.VerdictGoto, Chain: profile}
}

// setPolicy replaces a policy's chains, or removes them.
func (tx transaction) setPolicy(name string, c change) {
	var before, after []string
	if c.from != nil {
		before = chainsOf(name, *c.from)
	}
	if c.to != nil {
		after = chainsOf(name, *c.to)
	}
	for _, chain := range after {
		if !slices.Contains(before, chain) {
			tx.AddChain(tx.Chain(chain))
		}
	}
	for _, chain := range before {
		tx.FlushChain(tx.Chain(chain))
	}
	if c.to != nil {
		tx.fill(name, *c.to)
	}
	for _, chain := range before {
		if !slices.Contains(after, chain) {
			tx.DelChain(tx.Chain(chain))
		}
	}
}

// The chains of a policy: its own, which checks ports, one for the peers of each rule, and one for
// each block with exceptions.

func peersChain(policy string, rule int) string { return fmt.Sprintf("%s#%d", policy, rule) }

func blockChain(policy string, rule, peer int) string {
	return fmt.Sprintf("%s#%d.%d", policy, rule, peer)
}

func chainsOf(name string, p Policy) []string {
	chains := []string{name}
	for i, rule := range p.Rules {
		if rule.AnyPeer {
			continue
		}
		chains = append(chains, peersChain(name, i))
		for j, peer := range rule.Peers {
			if len(peer.Except) > 0 {
				chains = append(chains, blockChain(name, i, j))
			}
		}
	}
	return chains
}

func (tx transaction) fill(name string, p Policy) {
	chain := tx.Chain(name)
	for i, rule := range p.Rules {
		allow := nft.Verdict(expr.VerdictAccept, "")
		if !rule.AnyPeer {
			allow = nft.Verdict(expr.VerdictJump, peersChain(name, i))
			tx.fillPeers(name, i, rule.Peers, p.Egress)
		}
		if rule.AnyPort {
			tx.Rule(chain, allow)
		}
		for _, port := range rule.Ports {
			if !port.At.IsValid() || tx.Family.Has(port.At) {
				tx.Rule(chain, tx.isPort(port), allow)
			}
		}
	}
}

func (tx transaction) fillPeers(name string, rule int, peers []Peer, egress bool) {
	load := nft.LoadFlowSource(nft.RegA)
	if egress {
		load = nft.LoadFlowDestination(nft.RegA)
	}
	in := func(block netip.Prefix) []expr.Any { return append(nft.One(load), nft.InNetwork(block, true)...) }
	chain, accept := tx.Chain(peersChain(name, rule)), nft.Verdict(expr.VerdictAccept, "")
	for i, peer := range peers {
		if peer.Set == "" && !tx.Family.Has(peer.Block.Addr()) {
			continue
		}
		switch {
		case peer.Set != "":
			tx.Rule(chain, []expr.Any{load, &expr.Lookup{SourceRegister: nft.RegA, SetName: peer.Set}}, accept)
		case len(peer.Except) == 0:
			tx.Rule(chain, in(peer.Block), accept)
		default:
			// An exception ends the block, and no more: another peer may mean the address.
			tx.Rule(chain, in(peer.Block), nft.Verdict(expr.VerdictJump, blockChain(name, rule, i)))
			block := tx.Chain(blockChain(name, rule, i))
			for _, except := range peer.Except {
				tx.Rule(block, in(except), nft.Verdict(expr.VerdictReturn, ""))
			}
			tx.Rule(block, accept)
		}
	}
}

// isPort continues for connections to the port.
func (tx transaction) isPort(p Port) []expr.Any {
	steps := append(nft.One(nft.LoadFlowProtocol(nft.RegA)),
		nft.Equal(nft.RegA, []byte{nft.ProtocolNumber(p.Protocol)})...)
	if p.At.IsValid() {
		steps = append(append(steps, nft.LoadFlowDestination(nft.RegA)), nft.Equal(nft.RegA, p.At.AsSlice())...)
	}
	switch {
	case p.Set != "":
		return append(steps, nft.LoadFlowDestination(nft.RegA0), nft.LoadFlowPort(tx.Family.RegA1()),
			&expr.Lookup{SourceRegister: nft.RegA, SetName: p.Set})
	case p.First == 0 && p.Last == 65535:
		return steps
	case p.First == p.Last:
		return append(append(steps, nft.LoadFlowPort(nft.RegA)),
			nft.Equal(nft.RegA, binaryutil.BigEndian.PutUint16(p.First))...)
	}
	return append(steps, nft.LoadFlowPort(nft.RegA), &expr.Range{Op: expr.CmpOpEq, Register: nft.RegA,
		FromData: binaryutil.BigEndian.PutUint16(p.First), ToData: binaryutil.BigEndian.PutUint16(p.Last)})
}

// The sets.

func (tx transaction) isolations(name string) *nftables.Set {
	return &nftables.Set{Table: tx.Table, Name: name, IsMap: true, KeyType: tx.Family.TypeAddr(),
		DataType: nftables.TypeVerdict}
}

func (tx transaction) isolated() *nftables.Set {
	return &nftables.Set{Table: tx.Table, Name: setIsolated, Concatenation: true, KeyType: tx.Family.TypePair()}
}

func (tx transaction) members(name string) *nftables.Set {
	if isPorts(name) {
		return &nftables.Set{Table: tx.Table, Name: name, Concatenation: true, KeyType: tx.Family.TypeAddrPort()}
	}
	return &nftables.Set{Table: tx.Table, Name: name, KeyType: tx.Family.TypeAddr()}
}

func isPorts(set string) bool { return strings.HasPrefix(set, "ports/") }

// elementsOf returns the members that are of the table's family.
func (tx transaction) elementsOf(set string, members []netip.AddrPort) []nftables.SetElement {
	var elements []nftables.SetElement
	for _, member := range members {
		key := member.Addr().AsSlice()
		if isPorts(set) {
			key = nft.AddrPortKey(member.Addr(), member.Port())
		}
		if tx.Family.Has(member.Addr()) {
			elements = append(elements, nftables.SetElement{Key: key})
		}
	}
	return elements
}

// Try writes a table with a policy of every kind of rule, and removes it again. Its error names a
// missing feature of the kernel. It is for a separate network namespace.
func Try() error {
	rules := emptyRules()
	block := netip.MustParsePrefix("192.0.2.0/24")
	rules.Pods[block.Addr()] = Isolation{Egress: "profile/try"}
	rules.Profiles["profile/try"] = []string{"out/try"}
	rules.Sets["ports/try"] = map[netip.AddrPort]struct{}{netip.AddrPortFrom(block.Addr(), 80): {}}
	rules.Policies["out/try"] = Policy{Egress: true, Rules: []Rule{{
		Peers: []Peer{{Block: block, Except: []netip.Prefix{netip.PrefixFrom(block.Addr(), 32)}}},
		Ports: []Port{{First: 1, Last: 2}, {Set: "ports/try"}, {First: 3, Last: 3, Protocol: "UDP"}},
	}}}
	t := tables{writer: new(nft.Writer), families: []nft.Family{nft.IPv4}, dns: block.Addr()}
	if err := t.replace(rules, []netip.Prefix{block}); err != nil {
		return err
	}
	return Purge()
}

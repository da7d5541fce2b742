package proxy

import (
	"errors"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/barque/barque/network/nft"
)

// TableName is the name of the nftables tables of services and host ports, one of each family.
const TableName = "barque"

// Names in the table besides a chain and possibly an affinity map for each Chain. Those have a
// slash in their names, these do not.
const (
	chainServices = "services"
	chainRefuse   = "refuse"
	chainReject   = "reject"
	mapAddrs      = "frontends"      // address . protocol . port → chain
	mapPorts      = "node-frontends" // protocol . port → chain
	mapNoAddrs    = "refused"
	mapNoPorts    = "node-refused"
	setHairpins   = "hairpins" // address . address
)

// table writes Rules into the kernel, in one transaction each time: all of it takes effect at one
// moment, or nothing does and an error is returned. (Affinities to removed backends are dropped in
// a second one.) All of it happens in the network namespace of the calling thread.
type table struct {
	writer         *nft.Writer
	family         nft.Family
	podNetwork     netip.Prefix
	serviceNetwork netip.Prefix
	local          []netip.Addr // where the node itself answers
	routable       bool         // the outside has routes to pods, or another program masquerades
}

// transaction is one of the proxy's table.
type transaction struct{ *nft.Tx }

func (t table) begin() (transaction, error) {
	tx, err := t.writer.Begin(nft.Name{Family: t.family, Table: TableName})
	return transaction{tx}, err
}

// replace writes the whole table. Existing connections keep their backends: those are in the
// kernel's connection tracking, not here.
func (t table) replace(rules Rules) error {
	tx, err := t.begin()
	if err != nil {
		return err
	}
	tx.Clear()
	tx.skeleton(t)
	tx.apply(diff(emptyRules(), rules), t)
	return tx.Commit("write the service rules")
}

// change brings the table from one state to the next.
func (t table) change(delta Delta) error {
	tx, err := t.begin()
	if err != nil {
		return err
	}
	tx.apply(delta, t)
	if err := tx.Commit("change the service rules"); err != nil {
		return err
	}
	return t.forget(delta.SetChains)
}

// Purge removes the tables and with them every service rule. A missing table is no error.
func Purge() error {
	w := new(nft.Writer)
	return errors.Join(w.Purge(nft.Name{Family: nft.IPv4, Table: TableName}),
		w.Purge(nft.Name{Family: nft.IPv6, Table: TableName}))
}

// apply adds everything that others refer to before it is referred to, and
// removes it after.
func (tx transaction) apply(d Delta, t table) {
	for name := range d.AddChains {
		tx.AddChain(&nftables.Chain{Name: name, Table: tx.Table})
	}
	// A chain's old rules are deleted before their affinity map, and its new ones are added after
	// theirs.
	for name := range d.SetChains {
		tx.FlushChain(&nftables.Chain{Name: name, Table: tx.Table})
	}
	tx.changeFrontends(d)
	for _, name := range d.DelChains {
		tx.FlushChain(&nftables.Chain{Name: name, Table: tx.Table})
	}
	for _, name := range d.DelAffinity {
		tx.DelSet(tx.affinityMap(name, 0))
	}
	for name, timeout := range d.AddAffinity {
		tx.MakeSet(tx.affinityMap(name, timeout))
	}
	for name, chain := range d.AddChains {
		tx.fill(name, chain, t)
	}
	for name, chain := range d.SetChains {
		tx.fill(name, chain, t)
	}
	for _, name := range d.DelChains {
		tx.DelChain(&nftables.Chain{Name: name, Table: tx.Table})
	}
}

// changeFrontends changes the elements of the maps.
func (tx transaction) changeFrontends(d Delta) {
	var delAddrs, delPorts, delNoAddrs, delNoPorts, delHairpins []nftables.SetElement
	var addAddrs, addPorts, addNoAddrs, addNoPorts, addHairpins []nftables.SetElement
	split := func(frontend Frontend, verdict *expr.Verdict, addrs, ports *[]nftables.SetElement) {
		element := nftables.SetElement{Key: frontendKey(frontend), VerdictData: verdict}
		if frontend.Addr.IsValid() {
			*addrs = append(*addrs, element)
		} else {
			*ports = append(*ports, element)
		}
	}
	for _, frontend := range d.DelFrontends {
		split(frontend, nil, &delAddrs, &delPorts)
	}
	for _, frontend := range d.DelRefused {
		split(frontend, nil, &delNoAddrs, &delNoPorts)
	}
	for frontend, chain := range d.AddFrontends {
		split(frontend, &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}, &addAddrs, &addPorts)
	}
	for frontend, refusal := range d.AddRefused {
		verdict := &expr.Verdict{Kind: expr.VerdictDrop}
		if refusal == Reject {
			verdict = &expr.Verdict{Kind: expr.VerdictGoto, Chain: chainReject}
		}
		split(frontend, verdict, &addNoAddrs, &addNoPorts)
	}
	for _, addr := range d.DelHairpins {
		delHairpins = append(delHairpins, hairpinElement(addr))
	}
	for _, addr := range d.AddHairpins {
		addHairpins = append(addHairpins, hairpinElement(addr))
	}
	tx.DeleteElements(tx.verdictMap(mapAddrs), delAddrs)
	tx.DeleteElements(tx.verdictMap(mapPorts), delPorts)
	tx.DeleteElements(tx.verdictMap(mapNoAddrs), delNoAddrs)
	tx.DeleteElements(tx.verdictMap(mapNoPorts), delNoPorts)
	tx.DeleteElements(tx.hairpins(), delHairpins)
	tx.AddElements(tx.verdictMap(mapAddrs), addAddrs)
	tx.AddElements(tx.verdictMap(mapPorts), addPorts)
	tx.AddElements(tx.verdictMap(mapNoAddrs), addNoAddrs)
	tx.AddElements(tx.verdictMap(mapNoPorts), addNoPorts)
	tx.AddElements(tx.hairpins(), addHairpins)
}

func (tx transaction) verdictMap(name string) *nftables.Set {
	key := tx.Family.TypeAddrProtPort()
	if name == mapPorts || name == mapNoPorts {
		key = nft.TypeProtoPort
	}
	return &nftables.Set{
		Table: tx.Table, Name: name, IsMap: true, Concatenation: true, KeyType: key, DataType: nftables.TypeVerdict,
	}
}

func (tx transaction) hairpins() *nftables.Set {
	return &nftables.Set{Table: tx.Table, Name: setHairpins, Concatenation: true, KeyType: tx.Family.TypePair()}
}

// affinityMap remembers which backend a client's address was led to.
func (tx transaction) affinityMap(chain string, timeout time.Duration) *nftables.Set {
	return &nftables.Set{
		Table: tx.Table, Name: affinityName(chain), IsMap: true, Dynamic: true, HasTimeout: true, Timeout: timeout,
		KeyType: tx.Family.TypeAddr(), DataType: tx.Family.TypeAddrPort(), Size: 65535,
	}
}

func affinityName(chain string) string { return "affinity/" + chain }

func frontendKey(f Frontend) []byte {
	if f.Addr.IsValid() {
		return nft.AddrProtPortKey(f.Addr, f.Protocol, f.Port)
	}
	return nft.ProtoPortKey(f.Protocol, f.Port)
}

func hairpinElement(addr netip.Addr) nftables.SetElement {
	return nftables.SetElement{Key: nft.PairKey(addr)}
}

// Try writes a table with one rule of every kind, and removes it again. Its error names a missing
// feature of the kernel. It is for a separate network namespace.
func Try() error {
	backends := []Backend{
		{Addr: netip.MustParseAddr("192.0.2.1"), Port: 80}, {Addr: netip.MustParseAddr("192.0.2.2"), Port: 80},
	}
	rules := emptyRules()
	rules.Frontends[Frontend{Addr: netip.MustParseAddr("192.0.2.3"), Port: 80}] = "try/all"
	rules.Refused[Frontend{Port: 81}] = Reject
	rules.Chains["try/all"] = Chain{HideForeign: true, Backends: backends}
	rules.Chains["try/local"] = Chain{Cluster: "try/all", Affinity: time.Minute, Backends: backends}
	rules.Hairpins[backends[0].Addr] = struct{}{}
	t := table{writer: new(nft.Writer), podNetwork: netip.MustParsePrefix("192.0.2.0/24"),
		serviceNetwork: netip.MustParsePrefix("198.51.100.0/24")}
	if err := t.replace(rules); err != nil {
		return err
	}
	return Purge()
}

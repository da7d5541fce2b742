package devcluster

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// masquerade gives the nodes the machine's access to networks, for pulling images.
func (p *Plan) masquerade() error {
	if err := p.removeMasquerade(); err != nil {
		return err
	}
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	for _, subnet := range p.subnets() {
		p.masqueradeIn(conn, subnet)
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("nftables: masquerade what the nodes send outside: %w", err)
	}
	return nil
}

// masqueradeIn adds the table for the nodes' addresses in one network.
func (p *Plan) masqueradeIn(conn *nftables.Conn, subnet netip.Prefix) {
	family, source, destination := nftables.TableFamilyIPv4, uint32(12), uint32(16) // offsets in the header
	if subnet.Addr().Is6() {
		family, source, destination = nftables.TableFamilyIPv6, 8, 24
	}
	table := conn.AddTable(&nftables.Table{Family: family, Name: p.table()})
	chain := conn.AddChain(
		&nftables.Chain{Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	network := subnet.Masked().Addr().AsSlice()
	size := uint32(len(network))
	mask := net.CIDRMask(subnet.Bits(), subnet.Addr().BitLen())
	inSubnet := func(offset uint32, op expr.CmpOp) []expr.Any {
		return []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)},
			&expr.Cmp{Op: op, Register: 1, Data: network},
		}
	}
	// Where br_netfilter is loaded, packets across the bridge also pass this rule. Pods on
	// different nodes must see each other's own addresses.
	leaves := []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: interfaceName(p.bridge())}}
	rule := slices.Concat(inSubnet(source, expr.CmpOpEq), inSubnet(destination, expr.CmpOpNeq), leaves,
		[]expr.Any{&expr.Masq{}})
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rule})
}

func (p *Plan) removeMasquerade() error {
	return errors.Join(deleteTable(nftables.TableFamilyIPv4, p.table()),
		deleteTable(nftables.TableFamilyIPv6, p.table()))
}

// partition cuts the named nodes off from all others, and from this machine. Nodes named together
// still reach each other.
func (p *Plan) partition(names []string) error {
	for _, name := range names {
		if _, err := p.Node(name); err != nil {
			return err
		}
	}
	if err := p.heal(); err != nil {
		return err
	}
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyBridge, Name: p.table()})
	hook := func(name string, h *nftables.ChainHook) *nftables.Chain {
		return conn.AddChain(
			&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: h,
				Priority: nftables.ChainPriorityFilter})
	}
	forward, input, output := hook("forward", nftables.ChainHookForward), hook("input", nftables.ChainHookInput),
		hook("output", nftables.ChainHookOutput)
	drop := func(chain *nftables.Chain, matches ...[]expr.Any) {
		conn.AddRule(
			&nftables.Rule{Table: table, Chain: chain,
				Exprs: append(slices.Concat(matches...), &expr.Verdict{Kind: expr.VerdictDrop})})
	}
	for i := range p.Nodes {
		a := &p.Nodes[i]
		if !slices.Contains(names, a.Name) {
			continue
		}
		drop(input, interfaceIs(expr.MetaKeyIIFNAME, p.veth(a)))
		drop(output, interfaceIs(expr.MetaKeyOIFNAME, p.veth(a)))
		for j := range p.Nodes {
			if b := &p.Nodes[j]; !slices.Contains(names, b.Name) {
				drop(forward, interfaceIs(expr.MetaKeyIIFNAME, p.veth(a)), interfaceIs(expr.MetaKeyOIFNAME, p.veth(b)))
				drop(forward, interfaceIs(expr.MetaKeyIIFNAME, p.veth(b)), interfaceIs(expr.MetaKeyOIFNAME, p.veth(a)))
			}
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("nftables: partition %s: %w", strings.Join(names, ","), err)
	}
	return nil
}

// heal ends the partition.
func (p *Plan) heal() error { return deleteTable(nftables.TableFamilyBridge, p.table()) }

// partitioned reports whether a partition is in force.
func (p *Plan) partitioned() (bool, error) {
	conn, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("nftables: %w", err)
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyBridge)
	if err != nil {
		return false, fmt.Errorf("nftables: %w", err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == p.table() }), nil
}

func interfaceIs(key expr.MetaKey, name string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: interfaceName(name)}}
}

// interfaceName is a name as the kernel compares it, padded with zeros.
func interfaceName(name string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return padded
}

func deleteTable(family nftables.TableFamily, name string) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	conn.DelTable(&nftables.Table{Family: family, Name: name})
	if err := conn.Flush(); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("nftables: delete table %s: %w", name, err)
	}
	return nil
}

package clustertest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Host, as an end of a Drop, is this machine: the clients of the cluster.
const Host = ""

// Drop is a loss in the network: of packets from one node to another.
type Drop struct {
	From, To string
	// OneIn is how many packets there are for each that is lost, by chance; 0 and 1 lose all.
	OneIn uint32
}

// Both loses the packets between two nodes.
func Both(a, b string, oneIn uint32) []Drop { return []Drop{{a, b, oneIn}, {b, a, oneIn}} }

// wiresTable is the one of `barque dev partition`, so that `dev heal` and `dev down` remove it too.
func (c *Cluster) wiresTable() string { return "barque-dev-" + c.ID }

// Lose makes the network lose packets. It replaces the losses of an earlier call; without any,
// nothing is lost.
func (c *Cluster) Lose(drops ...Drop) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	old, err := conn.ListTablesOfFamily(nftables.TableFamilyBridge)
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	if slices.ContainsFunc(old, func(t *nftables.Table) bool { return t.Name == c.wiresTable() }) {
		conn.DelTable(&nftables.Table{Family: nftables.TableFamilyBridge, Name: c.wiresTable()})
	}
	if len(drops) > 0 {
		if err := c.addDrops(conn, drops); err != nil {
			return err
		}
	}
	if err := conn.Flush(); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("nftables: lose %v: %w", drops, err)
	}
	return nil
}

// Lost returns how many packets the network has lost since Lose was called last.
func (c *Cluster) Lost() (packets uint64, err error) {
	conn, err := nftables.New()
	if err != nil {
		return 0, fmt.Errorf("nftables: %w", err)
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyBridge)
	if err != nil {
		return 0, fmt.Errorf("nftables: %w", err)
	}
	for _, chain := range chains {
		if chain.Table.Name != c.wiresTable() {
			continue
		}
		rules, err := conn.GetRules(chain.Table, chain)
		if err != nil {
			return 0, fmt.Errorf("nftables: %w", err)
		}
		for _, rule := range rules {
			for _, e := range rule.Exprs {
				if counter, ok := e.(*expr.Counter); ok {
					packets += counter.Packets
				}
			}
		}
	}
	return packets, nil
}

func (c *Cluster) addDrops(conn *nftables.Conn, drops []Drop) error {
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyBridge, Name: c.wiresTable()})
	hook := func(name string, h *nftables.ChainHook) *nftables.Chain {
		return conn.AddChain(
			&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: h,
				Priority: nftables.ChainPriorityFilter})
	}
	forward, input, output := hook("forward", nftables.ChainHookForward), hook("input", nftables.ChainHookInput),
		hook("output", nftables.ChainHookOutput)
	for _, d := range drops {
		chain := forward
		if d.From == Host {
			chain = output
		} else if d.To == Host {
			chain = input
		}
		var match []expr.Any
		for _, end := range []struct {
			key  expr.MetaKey
			node string
		}{{expr.MetaKeyIIFNAME, d.From}, {expr.MetaKeyOIFNAME, d.To}} {
			if end.node == Host {
				continue
			}
			name := "bq-" + c.ID + "-" + end.node
			if _, err := net.InterfaceByName(name); err != nil {
				return fmt.Errorf("the cable of node %s: %w", end.node, err)
			}
			padded := make([]byte, unix.IFNAMSIZ)
			copy(padded, name)
			match = append(match, &expr.Meta{Key: end.key, Register: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: padded})
		}
		if d.OneIn > 1 {
			// Zero is the same in every order of bytes.
			match = append(match, &expr.Numgen{Register: 1, Modulus: d.OneIn, Type: unix.NFT_NG_RANDOM},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)})
		}
		conn.AddRule(
			&nftables.Rule{Table: table, Chain: chain,
				Exprs: append(match, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop})})
	}
	return nil
}

package proxy

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/network/nft"
)

// The rules lead new connections only. Two records of the kernel lead clients to removed backends:
//
//   - affinities, which are elements of maps in the table;
//   - tracked UDP connections, which have no end: a client that keeps asking from one port keeps
//     its entry alive. So when a destination loses backends, or gets its first ones, the entries
//     with other targets are deleted.

// staleFlows picks entries of the connection tracking to delete.
type staleFlows struct {
	family nft.Family
	// allowed holds, for each UDP destination that changed, the backends that
	// connections to it may have now.
	allowed map[Frontend]map[Backend]bool
}

// staleBetween finds the UDP destinations whose tracked connections may lead to wrong backends.
func staleBetween(now, next Rules) staleFlows {
	stale := staleFlows{allowed: map[Frontend]map[Backend]bool{}}
	consider := func(frontend Frontend) {
		if frontend.Protocol != corev1.ProtocolUDP {
			return
		}
		before, after := now.reachable(frontend), next.reachable(frontend)
		lost := len(before) == 0 && len(after) > 0 // led nowhere, or past us
		for backend := range before {
			lost = lost || !after[backend]
		}
		if lost {
			stale.allowed[frontend] = after
		}
	}
	for frontend := range now.Frontends {
		consider(frontend)
	}
	for frontend := range next.Frontends {
		consider(frontend)
	}
	return stale
}

// reachable returns every backend that a frontend may lead to.
func (r Rules) reachable(frontend Frontend) map[Backend]bool {
	backends := map[Backend]bool{}
	chain, ok := r.Chains[r.Frontends[frontend]]
	for ok {
		for _, backend := range append(r.Chains[chain.Cluster].Backends, chain.Backends...) {
			backends[backend] = true
		}
		chain, ok = r.Chains[chain.Next]
	}
	return backends
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (s staleFlows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	asked, ok := netip.AddrFromSlice(flow.Forward.DstIP)
	if !ok {
		return false
	}
	asked = asked.Unmap()
	frontend := Frontend{Addr: asked, Protocol: corev1.ProtocolUDP, Port: flow.Forward.DstPort}
	allowed, changed := s.allowed[frontend]
	if !changed {
		frontend.Addr = netip.Addr{}
		if allowed, changed = s.allowed[frontend]; !changed {
			return false
		}
	}
	answering, _ := netip.AddrFromSlice(flow.Reverse.SrcIP)
	return !allowed[Backend{Addr: answering.Unmap(), Port: flow.Reverse.SrcPort}]
}

// deleteFlows deletes the stale entries in this network namespace.
func deleteFlows(stale staleFlows) error {
	if len(stale.allowed) == 0 {
		return nil
	}
	family := netlink.InetFamily(unix.AF_INET)
	if stale.family == nft.IPv6 {
		family = unix.AF_INET6
	}
	if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, stale); err != nil {
		return fmt.Errorf("delete stale UDP entries from the connection tracking: %w", err)
	}
	return nil
}

// merge adds the findings of another comparison.
func (s staleFlows) merge(other staleFlows) staleFlows {
	merged := staleFlows{family: other.family, allowed: maps.Clone(s.allowed)}
	if merged.allowed == nil {
		merged.allowed = map[Frontend]map[Backend]bool{}
	}
	maps.Copy(merged.allowed, other.allowed)
	return merged
}

// forget removes, from the affinity maps of changed chains, the clients of removed backends. New
// entries for those cannot appear: the chains no longer have them.
func (t table) forget(changed map[string]Chain) error {
	tx, err := t.begin()
	if err != nil {
		return err
	}
	for name, chain := range changed {
		if chain.Affinity == 0 {
			continue
		}
		set := tx.affinityMap(name, chain.Affinity)
		elements, err := tx.GetSetElements(set)
		if err != nil {
			return fmt.Errorf("nftables: read the affinities of %s: %w", name, err)
		}
		var gone []nftables.SetElement
		for _, element := range elements {
			if backend, ok := parseBackend(t.family, element.Val); !ok || !slices.Contains(chain.Backends, backend) {
				gone = append(gone, nftables.SetElement{Key: element.Key})
			}
		}
		tx.DeleteElements(set, gone)
	}
	return tx.Commit("forget affinities")
}

func parseBackend(family nft.Family, value []byte) (Backend, bool) {
	length := int(family.Len())
	if len(value) < length+2 {
		return Backend{}, false
	}
	addr, ok := netip.AddrFromSlice(value[:length])
	return Backend{Addr: addr, Port: binary.BigEndian.Uint16(value[length:])}, ok
}

package services

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/internal/balancers"
	"github.com/barque/barque/raftstore"
)

// keepBalanced brings the reservations of load balancers in line with the Services: addresses of
// pools, and ports of the nodes.
func (p *plan) keepBalanced() error {
	reserved := map[netip.Addr]raftstore.Item{}
	each(p.view, balancedPrefix, func(item raftstore.Item) {
		if address, err := netip.ParseAddr(strings.TrimPrefix(item.Key, balancedPrefix)); err == nil {
			reserved[address] = item
		}
	})
	all := map[netip.Addr]bool{}
	for _, of := range [][]netip.Addr{slices.Collect(maps.Keys(reserved)), slices.Collect(maps.Keys(p.sharers))} {
		for _, address := range of {
			all[address] = true
		}
	}
	for _, address := range missing(all, nil, netip.Addr.Compare) {
		if err := p.keepShared(address, reserved[address]); err != nil {
			return err
		}
	}
	for _, s := range p.services {
		for _, port := range missing(balancedOf(s).ports, nil, balancers.ComparePorts) {
			p.keepTaken(s, port)
		}
	}
	return nil
}

// keepShared adds the Services that the record of an address lacks, and takes those away that have
// not had the address for long enough. item is the zero value where there is no record.
func (p *plan) keepShared(address netip.Addr, item raftstore.Item) error {
	key, r := balancedKey(address), addressRecord{Owners: map[string][]string{}}
	if item.Key != "" {
		var err error
		if r, err = readAddressRecord(item); err != nil {
			return err
		}
	}
	txn := raftstore.Txn{Require: []raftstore.Precondition{{Key: key, ModRevision: item.ModRevision}}}
	changed := false
	for _, name := range slices.Sorted(maps.Keys(r.Owners)) {
		holds := slices.ContainsFunc(p.sharers[address], func(s *corev1.Service) bool { return owner(s) == name })
		if !holds && p.leaked(key+" "+name, item.ModRevision) {
			delete(r.Owners, name)
			changed = true
		}
	}
	for _, s := range p.sharers[address] {
		if _, listed := r.Owners[owner(s)]; listed {
			continue
		}
		ports := texts(balancedOf(s).addresses[address])
		if err := r.admits(s, address, ports); err != nil {
			p.notice(s, "LoadBalancerIPAlreadyAllocated",
				"Load balancer IP %s was assigned to multiple services: %v; please recreate service", address, err)
			continue
		}
		if len(r.Owners) == 0 {
			r.Share = balancers.ShareKey(s)
		}
		r.Owners[owner(s)] = ports
		txn.Require = append(txn.Require, p.unchanged(s))
		changed = true
	}
	if !changed {
		return nil
	}
	op, err := r.op(key)
	if err != nil {
		return fmt.Errorf("the reservation %s: %w", key, err)
	}
	txn.Ops = []raftstore.Op{op}
	p.txns = append(p.txns, txn)
	return nil
}

// leaked reports whether a reservation has been seen without its Service for long enough.
func (p *plan) leaked(name string, revision uint64) bool {
	seen, again := p.before[name]
	if !again || seen.revision != revision {
		seen = leak{revision, p.now}
	}
	if p.now.Sub(seen.since) < leakAge {
		p.leaks[name] = seen
		return false
	}
	return true
}

// keepTaken makes the reservation of a port of the nodes that a Service has.
func (p *plan) keepTaken(s *corev1.Service, port balancers.Port) {
	txn := raftstore.Txn{Require: []raftstore.Precondition{p.unchanged(s)}}
	if !p.reserve(&txn, s, takenKey(port)) {
		if len(p.holders[takenKey(port)]) > 1 {
			p.notice(s, "PortAlreadyAllocated",
				"Port %s of the nodes was assigned to multiple services; please recreate service", port)
		}
		return
	}
	if len(txn.Ops) > 0 {
		p.txns = append(p.txns, txn)
	}
}

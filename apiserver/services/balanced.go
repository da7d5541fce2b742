package services

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/apiserver/storeerror"
	"github.com/barque/barque/internal/balancers"
	"github.com/barque/barque/raftstore"
)

// Where the reservations of load balancers lie. An address of a pool may belong to several Services
// that share it, so its value is a list. A port of the nodes has one owner.
const (
	balancedPrefix = "/barque/allocations/loadbalancers/addresses/"
	takenPrefix    = "/barque/allocations/loadbalancers/nodeports/"
)

func balancedKey(a netip.Addr) string { return balancedPrefix + a.String() }

func takenKey(p balancers.Port) string { return takenPrefix + p.String() }

// balanced is what a Service has outside of the cluster that Barque's load balancers have given. A
// condition in the status says that they have. Statuses of other load balancers reserve nothing.
type balanced struct {
	addresses map[netip.Addr][]balancers.Port // of pools
	ports     map[balancers.Port]bool         // of the nodes
}

func balancedOf(s *corev1.Service) balanced {
	b := balanced{map[netip.Addr][]balancers.Port{}, map[balancers.Port]bool{}}
	if s == nil {
		return b
	}
	condition := balancers.ConditionOf(s)
	if condition == "" {
		return b
	}
	for _, held := range balancers.HeldBy(s) {
		if condition == balancers.PoolCondition {
			b.addresses[held.Address] = held.Ports
			continue
		}
		for _, port := range held.Ports {
			b.ports[port] = true
		}
	}
	return b
}

// addressRecord is the value of a reserved address.
type addressRecord struct {
	// Share is what its Services have in common, as of when they came: see balancers.ShareKey.
	Share string `json:"share,omitempty"`
	// Owners has the ports of each Service, such as 80/TCP.
	Owners map[string][]string `json:"owners"`
}

func readAddressRecord(item raftstore.Item) (addressRecord, error) {
	var r addressRecord
	if err := json.Unmarshal(item.Value, &r); err != nil {
		return r, fmt.Errorf("the reservation %s: %w", item.Key, err)
	}
	return r, nil
}

// op writes a record, or deletes it when nobody is left.
func (r addressRecord) op(key string) (raftstore.Op, error) {
	if len(r.Owners) == 0 {
		return raftstore.Op{Kind: raftstore.Delete, Key: key}, nil
	}
	value, err := json.Marshal(r) // sorts the owners
	return raftstore.Op{Kind: raftstore.Put, Key: key, Value: value}, err
}

func texts(ports []balancers.Port) []string {
	out := make([]string, len(ports))
	for i, p := range ports {
		out[i] = p.String()
	}
	return out
}

// BalancedOwner returns a Service, as namespace/name, that has an address of a pool; "" without one.
func BalancedOwner(view raftstore.View, address netip.Addr) (string, error) {
	item, reserved := view.Get(balancedKey(address.Unmap()))
	if !reserved {
		return "", nil
	}
	r, err := readAddressRecord(item)
	if err != nil {
		return "", err
	}
	if len(r.Owners) == 0 {
		return "", nil
	}
	return nameOf(slices.Min(slices.Collect(maps.Keys(r.Owners)))), nil
}

// admits returns the reason for which a Service may not come to an address.
func (r addressRecord) admits(s *corev1.Service, address netip.Addr, ports []string) error {
	me, share := owner(s), balancers.ShareKey(s)
	for _, other := range slices.Sorted(maps.Keys(r.Owners)) {
		if other == me {
			continue
		}
		if share == "" || share != r.Share {
			return fmt.Errorf("the address %s is in use by the Service %s", address, nameOf(other))
		}
		for _, port := range ports {
			if slices.Contains(r.Owners[other], port) {
				return fmt.Errorf("the port %s of the address %s is in use by the Service %s", port, address,
					nameOf(other))
			}
		}
	}
	return nil
}

// nameOf is the Service of an owner, without its UID.
func nameOf(owner string) string {
	if at := bytes.LastIndexByte([]byte(owner), '/'); at >= 0 {
		return owner[:at]
	}
	return owner
}

// ofBalanced adds to the companion what the change of a Service means for its addresses and ports
// outside of the cluster.
func (a *Allocator) ofBalanced(ctx context.Context, with *storage.Companion, was, is *corev1.Service) error {
	had, has := balancedOf(was), balancedOf(is)
	moved := changedAddresses(had.addresses, has.addresses)
	freed := missing(had.ports, has.ports, balancers.ComparePorts)
	taken := missing(has.ports, had.ports, balancers.ComparePorts)
	if len(moved)+len(freed)+len(taken) == 0 {
		return nil
	}
	view, err := a.view(ctx)
	if was != nil {
		view, err = a.viewOf(ctx, was)
	}
	if err != nil {
		return err
	}
	err = balance(with, view, was, is, moved, freed, taken)
	if err == nil || !apierrors.IsInvalid(err) {
		return err
	}
	// It may be for something that another server has freed since.
	fresh, readErr := a.cfg.Backend.View(ctx, raftstore.ViewOptions{})
	if readErr != nil {
		return storeerror.OfRead(readErr)
	}
	return balance(with, fresh, was, is, moved, freed, taken)
}

// changedAddresses lists the addresses that are in one of both only, or with other ports.
func changedAddresses(had, has map[netip.Addr][]balancers.Port) []netip.Addr {
	all := map[netip.Addr]bool{}
	for _, of := range []map[netip.Addr][]balancers.Port{had, has} {
		for address := range of {
			before, was := had[address]
			after, is := has[address]
			if was != is || !slices.Equal(before, after) {
				all[address] = true
			}
		}
	}
	return missing(all, nil, netip.Addr.Compare)
}

// balance adds the operations as of a view. It adds nothing when it refuses.
func balance(
	with *storage.Companion, view raftstore.View, was, is *corev1.Service, moved []netip.Addr,
	freed, taken []balancers.Port,
) error {
	next := storage.Companion{}
	now := balancedOf(is)
	for _, address := range moved {
		ports, stays := now.addresses[address]
		if err := share(&next, view, was, is, address, texts(ports), stays); err != nil {
			return err
		}
	}
	for _, port := range freed {
		item, reserved := view.Get(takenKey(port))
		if reserved && string(item.Value) == owner(was) {
			next.Require = append(next.Require, raftstore.Precondition{Key: item.Key, ModRevision: item.ModRevision})
			next.Ops = append(next.Ops, raftstore.Op{Kind: raftstore.Delete, Key: item.Key})
		}
	}
	for _, port := range taken {
		if item, reserved := view.Get(takenKey(port)); reserved && string(item.Value) != owner(is) {
			return refused(is,
				fmt.Errorf("the port %s of the nodes is in use by the Service %s", port, nameOf(string(item.Value))))
		} else if !reserved {
			take(&next, takenKey(port), is)
		}
	}
	with.Require, with.Ops = append(with.Require, next.Require...), append(with.Ops, next.Ops...)
	return nil
}

// share takes a Service from the list of an address, or puts it there with its ports.
func share(
	with *storage.Companion, view raftstore.View, was, is *corev1.Service, address netip.Addr, ports []string,
	stays bool,
) error {
	key := balancedKey(address)
	item, reserved := view.Get(key) // absent is revision 0
	r := addressRecord{Owners: map[string][]string{}}
	if reserved {
		var err error
		if r, err = readAddressRecord(item); err != nil {
			return err
		}
	}
	listed := false
	if was != nil {
		_, listed = r.Owners[owner(was)]
		delete(r.Owners, owner(was))
	}
	switch {
	case stays:
		if err := r.admits(is, address, ports); err != nil {
			return refused(is, err)
		}
		if len(r.Owners) == 0 {
			r.Share = balancers.ShareKey(is)
		}
		r.Owners[owner(is)] = ports
	case !listed:
		return nil
	}
	op, err := r.op(key)
	if err != nil {
		return err
	}
	with.Require = append(with.Require, raftstore.Precondition{Key: key, ModRevision: item.ModRevision})
	with.Ops = append(with.Ops, op)
	return nil
}

// refused is the answer to a status with an address or a port of another Service.
func refused(s *corev1.Service, cause error) error {
	return apierrors.NewInvalid(serviceKind, s.Name, field.ErrorList{
		field.Invalid(field.NewPath("status", "loadBalancer", "ingress"), ingressText(s), cause.Error()),
	})
}

func ingressText(s *corev1.Service) []string {
	var out []string
	for _, in := range s.Status.LoadBalancer.Ingress {
		out = append(out, in.IP)
	}
	return out
}

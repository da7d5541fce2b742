package services

import (
	"context"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/raftstore"
)

// managedBy marks the IPAddress objects that are made here.
const managedBy = "ipallocator.k8s.io"

var _ storage.Companions = (*Allocator)(nil)

// Of implements storage.Companions: a Service that is written takes the values that are new to it,
// and frees those that it no longer has.
func (a *Allocator) Of(ctx context.Context, old, obj runtime.Object) (storage.Companion, error) {
	was, _ := old.(*corev1.Service)
	is, _ := obj.(*corev1.Service)
	had, has := holdingsOf(was), holdingsOf(is)
	var with storage.Companion
	if was != nil {
		if err := a.free(ctx, &with, was, had, has); err != nil {
			return with, err
		}
	}
	if err := a.ofBalanced(ctx, &with, was, is); err != nil {
		return with, err
	}
	if is == nil {
		return with, nil
	}
	var cidrs []*serviceCIDR
	for _, address := range missing(has.addresses, had.addresses, netip.Addr.Compare) {
		if cidrs == nil {
			view, err := a.view(ctx)
			if err != nil {
				return with, err
			}
			if cidrs, err = a.cidrs.in(ctx, view); err != nil {
				return with, err
			}
		}
		if err := a.takeAddress(ctx, &with, is, address, cidrs); err != nil {
			return with, err
		}
	}
	for _, port := range missing(has.ports, had.ports, func(a, b int32) int { return int(a - b) }) {
		take(&with, portKey(port), is)
	}
	return with, nil
}

// missing lists what is in a and not in b, sorted, so that a transaction is the same each time.
func missing[T comparable](a, b map[T]bool, compare func(T, T) int) []T {
	var out []T
	for v := range a {
		if !b[v] {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, compare)
	return out
}

// take makes a reservation where none is.
func take(with *storage.Companion, key string, s *corev1.Service) {
	with.Require = append(with.Require, raftstore.Precondition{Key: key})
	with.Ops = append(with.Ops, raftstore.Op{Kind: raftstore.Put, Key: key, Value: []byte(owner(s))})
}

func (a *Allocator) takeAddress(
	ctx context.Context, with *storage.Companion, s *corev1.Service, address netip.Addr, cidrs []*serviceCIDR,
) error {
	cidr := readyFor(cidrs, address)
	if cidr == nil { // its ServiceCIDR has gone since the address was picked
		p := &picker{service: s}
		return p.invalid(field.NewPath("spec", "clusterIPs"), s.Spec.ClusterIPs,
			"failed to allocate IP "+address.String()+": "+errOtherNetwork.Error())
	}
	if unchanged := cidr.unchanged(); !slices.Contains(with.Require, unchanged) {
		with.Require = append(with.Require, unchanged)
	}
	take(with, addressKey(address), s)
	put, err := a.cfg.Addresses.Put(ctx, address.String(), newIPAddress(address, s))
	if err != nil {
		return err
	}
	with.Require = append(with.Require, raftstore.Precondition{Key: put.Key})
	with.Ops = append(with.Ops, put)
	return nil
}

// newIPAddress is the object of an address that belongs to a Service.
func newIPAddress(address netip.Addr, s *corev1.Service) *networkingv1.IPAddress {
	out := &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: address.String(), Generation: 1, Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: string(familyOf(address)),
			networkingv1.LabelManagedBy:       managedBy,
		}},
		Spec: networkingv1.IPAddressSpec{
			ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: s.Namespace, Name: s.Name}},
	}
	rest.FillObjectMetaSystemFields(out)
	return out
}

// free deletes the reservations and IPAddress objects of a Service that it no longer needs. Those
// that name somebody else are left.
func (a *Allocator) free(ctx context.Context, with *storage.Companion, was *corev1.Service, had, has holdings) error {
	addresses := missing(had.addresses, has.addresses, netip.Addr.Compare)
	ports := missing(had.ports, has.ports, func(a, b int32) int { return int(a - b) })
	if len(addresses)+len(ports) == 0 {
		return nil
	}
	view, err := a.viewOf(ctx, was)
	if err != nil {
		return err
	}
	release := func(key string) {
		if item, reserved := view.Get(key); reserved && string(item.Value) == owner(was) {
			with.Ops = append(with.Ops, raftstore.Op{Kind: raftstore.Delete, Key: key})
		}
	}
	for _, port := range ports {
		release(portKey(port))
	}
	for _, address := range addresses {
		release(addressKey(address))
		item, shown := view.Get(a.cfg.Addresses.Key(address.String()))
		if !shown {
			continue
		}
		var object networkingv1.IPAddress
		if err := a.cfg.Addresses.Decode(ctx, item, &object); err != nil {
			return err
		}
		if refersTo(&object, was) {
			with.Ops = append(with.Ops, raftstore.Op{Kind: raftstore.Delete, Key: item.Key})
		}
	}
	return nil
}

// refersTo tells whether an IPAddress says that it is a Service's.
func refersTo(a *networkingv1.IPAddress, s *corev1.Service) bool {
	p := a.Spec.ParentRef
	return p != nil && p.Group == "" && p.Resource == "services" && p.Namespace == s.Namespace && p.Name == s.Name
}

// viewOf returns a view in which a stored Service can be seen, and so all that came with it.
func (a *Allocator) viewOf(ctx context.Context, s *corev1.Service) (raftstore.View, error) {
	revision, err := resourceVersion(s)
	if err != nil {
		return nil, err
	}
	a.learn(revision)
	return a.view(ctx)
}

// Refused implements storage.Companions: values that somebody else has taken meanwhile are replaced
// by others, if the server had chosen them. Admission has seen the first ones.
func (a *Allocator) Refused(ctx context.Context, old, obj runtime.Object, conflict *raftstore.ConflictError) error {
	a.learn(conflict.Revision)
	s, chosen := obj.(*corev1.Service), choicesOf(ctx)
	was, _ := old.(*corev1.Service)
	had := holdingsOf(was)
	view, err := a.view(ctx)
	if err != nil {
		return err
	}
	cidrs, err := a.cidrs.in(ctx, view)
	if err != nil {
		return err
	}
	p := &picker{a: a, view: view, cidrs: cidrs, service: s, choices: chosen, ports: holdingsOf(s).ports}
	for i, text := range s.Spec.ClusterIPs {
		address, ok := parseAddress(text)
		if !ok || had.addresses[address] {
			continue
		}
		wanted := text
		if chosen.addresses[address] {
			if p.mayHave(address) == nil {
				continue
			}
			wanted = ""
		}
		if text, err = p.address(familyOf(address), wanted); err != nil {
			return err
		}
		s.Spec.ClusterIPs[i] = text
		if i == 0 {
			s.Spec.ClusterIP = text
		}
	}
	return p.replacePorts(had)
}

// replacePorts replaces the node ports that are taken.
func (p *picker) replacePorts(had holdings) error {
	replaced := map[int32]int32{}
	replace := func(port *int32, at *field.Path) error {
		if *port == 0 || had.ports[*port] || freePort(p.view, *port) {
			return nil
		}
		if !p.choices.ports[*port] {
			return p.invalid(at, *port, errPortTaken.Error())
		}
		if replaced[*port] == 0 {
			chosen, err := p.choosePort()
			if err != nil {
				return err
			}
			replaced[*port] = chosen
		}
		*port = replaced[*port]
		return nil
	}
	spec := &p.service.Spec
	for i := range spec.Ports {
		if err := replace(&spec.Ports[i].NodePort, portPath(i)); err != nil {
			return err
		}
	}
	return replace(&spec.HealthCheckNodePort, field.NewPath("spec", "healthCheckNodePort"))
}

package services

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/allocator"
	"github.com/barque/barque/apiserver/resource"
)

// Pool is a range of values of which each has at most one owner.
type Pool[T any] interface {
	// Allocate reserves any free value.
	Allocate(ctx context.Context, owner string) (T, error)
	// Reserve reserves the given value, or fails because it is taken or not in the range.
	Reserve(ctx context.Context, value T, owner string) error
	// Release frees a value that belongs to owner.
	Release(ctx context.Context, value T, owner string) error
}

// Allocator allocates for Services.
type Allocator struct {
	Addresses Pool[netip.Addr]
	Ports     Pool[int32]
	Logger    *slog.Logger
}

// releaseTimeout bounds giving back what a request that may be over had reserved.
const releaseTimeout = 10 * time.Second

// Attach makes the declaration of Services allocate.
func (a *Allocator) Attach(k *resource.Kind[corev1.Service]) {
	k.BeginCreate = a.create
	k.BeginUpdate = a.update
	k.AfterDelete = a.deleted
}

// lease is what one request has reserved so far, to be given back if the request fails, and what
// it will give back if it succeeds.
type lease struct {
	a         *Allocator
	owner     string
	addresses []netip.Addr
	ports     []int32

	freedAddresses []netip.Addr
	freedPorts     []int32
}

func owner(s *corev1.Service) string { return s.Namespace + "/" + s.Name + "/" + string(s.UID) }

func (a *Allocator) create(ctx context.Context, s *corev1.Service, options *metav1.CreateOptions) (func(context.Context, bool), error) {
	if len(options.DryRun) > 0 {
		return nil, nil // a dry run has no effects, and so gets no address
	}
	l := &lease{a: a, owner: owner(s)}
	if err := l.fill(ctx, s, nil); err != nil {
		l.finish(ctx, false)
		return nil, err
	}
	return l.finish, nil
}

func (a *Allocator) update(ctx context.Context, s, old *corev1.Service, options *metav1.UpdateOptions) (func(context.Context, bool), error) {
	if len(options.DryRun) > 0 {
		return nil, nil
	}
	l := &lease{a: a, owner: owner(old)}
	if err := l.fill(ctx, s, old); err != nil {
		l.finish(ctx, false)
		return nil, err
	}
	l.free(s, old)
	return l.finish, nil
}

func (a *Allocator) deleted(s *corev1.Service, options *metav1.DeleteOptions) {
	if options != nil && len(options.DryRun) > 0 {
		return
	}
	l := &lease{a: a, owner: owner(s), freedAddresses: addressesOf(s), freedPorts: portsOf(s)}
	l.finish(context.Background(), true)
}

// fill reserves what s needs beyond what old has.
func (l *lease) fill(ctx context.Context, s, old *corev1.Service) error {
	if err := l.fillAddress(ctx, s, old); err != nil {
		return refusal(s, field.NewPath("spec", "clusterIPs").Index(0), s.Spec.ClusterIP, err)
	}
	return l.fillPorts(ctx, s, old)
}

func (l *lease) fillAddress(ctx context.Context, s, old *corev1.Service) error {
	if s.Spec.Type == corev1.ServiceTypeExternalName || s.Spec.ClusterIP == corev1.ClusterIPNone {
		return nil
	}
	if s.Spec.ClusterIP == "" {
		address, err := l.a.Addresses.Allocate(ctx, l.owner)
		if err != nil {
			return err
		}
		l.addresses = append(l.addresses, address)
		s.Spec.ClusterIP, s.Spec.ClusterIPs = address.String(), []string{address.String()}
		return nil
	}
	address, err := netip.ParseAddr(s.Spec.ClusterIP)
	if err != nil {
		return err
	}
	if old != nil && old.Spec.ClusterIP == s.Spec.ClusterIP {
		return nil
	}
	if err := l.a.Addresses.Reserve(ctx, address, l.owner); err != nil {
		return err
	}
	l.addresses = append(l.addresses, address)
	return nil
}

func (l *lease) fillPorts(ctx context.Context, s, old *corev1.Service) error {
	has := map[int32]bool{}
	if old != nil {
		for _, p := range portsOf(old) {
			has[p] = true
		}
	}
	// First what is asked for, so that what is chosen does not take it.
	for _, wanted := range wantedPorts(s) {
		if *wanted.port == 0 || has[*wanted.port] {
			continue
		}
		if err := l.a.Ports.Reserve(ctx, *wanted.port, l.owner); err != nil {
			return refusal(s, wanted.at, *wanted.port, err)
		}
		has[*wanted.port] = true
		l.ports = append(l.ports, *wanted.port)
	}
	for _, wanted := range wantedPorts(s) {
		if *wanted.port != 0 {
			continue
		}
		port, err := l.a.Ports.Allocate(ctx, l.owner)
		if err != nil {
			return refusal(s, wanted.at, int32(0), err)
		}
		*wanted.port = port
		l.ports = append(l.ports, port)
	}
	return nil
}

// wantedPort is a place in a Service for a node port.
type wantedPort struct {
	port *int32
	at   *field.Path
}

func wantedPorts(s *corev1.Service) []wantedPort {
	var out []wantedPort
	spec := field.NewPath("spec")
	loadBalancer := s.Spec.Type == corev1.ServiceTypeLoadBalancer
	if s.Spec.Type != corev1.ServiceTypeNodePort && !loadBalancer {
		return nil
	}
	optional := loadBalancer && s.Spec.AllocateLoadBalancerNodePorts != nil && !*s.Spec.AllocateLoadBalancerNodePorts
	for i := range s.Spec.Ports {
		if p := &s.Spec.Ports[i]; p.NodePort != 0 || !optional {
			out = append(out, wantedPort{&p.NodePort, spec.Child("ports").Index(i).Child("nodePort")})
		}
	}
	if loadBalancer && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		out = append(out, wantedPort{&s.Spec.HealthCheckNodePort, spec.Child("healthCheckNodePort")})
	}
	return out
}

// free notes what old has and s no longer does.
func (l *lease) free(s, old *corev1.Service) {
	kept := map[netip.Addr]bool{}
	for _, a := range addressesOf(s) {
		kept[a] = true
	}
	for _, a := range addressesOf(old) {
		if !kept[a] {
			l.freedAddresses = append(l.freedAddresses, a)
		}
	}
	keptPorts := map[int32]bool{}
	for _, p := range portsOf(s) {
		keptPorts[p] = true
	}
	for _, p := range portsOf(old) {
		if !keptPorts[p] {
			l.freedPorts = append(l.freedPorts, p)
		}
	}
}

// finish gives back what the outcome leaves without an owner. It must run even when the request
// has been given up, so it does not end with the request's context.
func (l *lease) finish(ctx context.Context, success bool) {
	addresses, ports := l.addresses, l.ports
	if success {
		addresses, ports = l.freedAddresses, l.freedPorts
	}
	if len(addresses) == 0 && len(ports) == 0 {
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), releaseTimeout, errors.New("releasing what a Service had took too long"))
	defer cancel()
	for _, address := range addresses {
		if err := l.a.Addresses.Release(ctx, address, l.owner); err != nil {
			l.a.Logger.Warn("a service address stays reserved until it is repaired", "address", address, "owner", l.owner, "err", err)
		}
	}
	for _, port := range ports {
		if err := l.a.Ports.Release(ctx, port, l.owner); err != nil {
			l.a.Logger.Warn("a node port stays reserved until it is repaired", "port", port, "owner", l.owner, "err", err)
		}
	}
}

func addressesOf(s *corev1.Service) []netip.Addr {
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	if address, err := netip.ParseAddr(s.Spec.ClusterIP); err == nil {
		return []netip.Addr{address}
	}
	return nil
}

// portsOf lists the node ports of a Service, each once.
func portsOf(s *corev1.Service) []int32 {
	var out []int32
	seen := map[int32]bool{0: true}
	for _, w := range wantedPorts(s) {
		if !seen[*w.port] {
			seen[*w.port] = true
			out = append(out, *w.port)
		}
	}
	return out
}

// refusal turns a pool's answer into the API's. What the store could not do stays what it is: the
// client may try again.
func refusal(s *corev1.Service, at *field.Path, value any, err error) error {
	switch {
	case errors.Is(err, allocator.ErrAllocated), errors.Is(err, allocator.ErrNotInRange):
		return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), s.Name,
			field.ErrorList{field.Invalid(at, value, err.Error())})
	case errors.Is(err, allocator.ErrFull):
		return apierrors.NewInternalError(fmt.Errorf("allocating %s of Service %s/%s: %w", at, s.Namespace, s.Name, err))
	}
	return err
}

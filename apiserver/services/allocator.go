package services

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/allocator"
	"github.com/barque/barque/apiserver/resource"
	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/apiserver/storeerror"
	"github.com/barque/barque/raftstore"
)

// Backend is the datastore of an Allocator.
type Backend interface {
	View(ctx context.Context, opts raftstore.ViewOptions) (raftstore.View, error)
	Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error)
}

// Config has the dependencies and ranges of an Allocator.
type Config struct {
	Backend Backend
	// CIDRs are the configured ranges of addresses: one, or one of each family. The first one's
	// family is that of Services without a family.
	CIDRs []netip.Prefix
	// FirstPort and LastPort bound the node ports, both included.
	FirstPort, LastPort int32
	// Services, Addresses and ServiceCIDRs are the objects of the resources of these names.
	Services, Addresses, ServiceCIDRs *storage.Objects
	// Validate checks the addresses and families of a Service, unless its type is ExternalName. old
	// is nil on create.
	Validate func(s, old *corev1.Service) field.ErrorList
}

// Allocator allocates for Services. It keeps nothing but values that it has read: any number of
// them, on any number of servers, may allocate at once.
type Allocator struct {
	cfg      Config
	families []corev1.IPFamily     // configured, the default one first
	reserved map[netip.Addr]string // addresses that only one Service may have, as namespace/name
	ports    allocator.Range[int32]
	cidrs    cidrReader
	// newest is the revision of the newest conflict: a value was taken at it, and this server had
	// not seen that.
	newest atomic.Uint64
}

// New makes an Allocator.
func New(cfg Config) (*Allocator, error) {
	a := &Allocator{cfg: cfg, cidrs: cidrReader{objects: cfg.ServiceCIDRs, defaults: cfg.CIDRs}}
	for _, cidr := range cfg.CIDRs {
		if !cidr.IsValid() || cidr.Addr().BitLen()-cidr.Bits() < 2 {
			return nil,
				fmt.Errorf(
					"service CIDR %v is too small: it must hold an address besides that of the kubernetes Service",
					cidr)
		}
		a.families = append(a.families, familyOf(cidr.Addr()))
	}
	if n := len(a.families); n == 0 || n > 2 || n == 2 && a.families[0] == a.families[1] {
		return nil, fmt.Errorf("service CIDRs %v: there must be one, or one of each family", cfg.CIDRs)
	}
	a.reserved = map[netip.Addr]string{
		FirstAddress(cfg.CIDRs[0]): "default/kubernetes",
		DNSAddress(cfg.CIDRs[0]):   "kube-system/kube-dns",
	}
	var err error
	a.ports, err = allocator.Ports(cfg.FirstPort, cfg.LastPort)
	return a, err
}

// FirstAddress is the address of the API's Service in a range of addresses.
func FirstAddress(cidr netip.Prefix) netip.Addr { return cidr.Masked().Addr().Next() }

// DNSAddress is the address of cluster DNS in a range of addresses, the tenth. A range of less has
// none: it is not in it then.
func DNSAddress(cidr netip.Prefix) netip.Addr {
	address := cidr.Masked().Addr()
	for range 10 {
		address = address.Next()
	}
	return address
}

// Attach makes the declaration of Services allocate.
func (a *Allocator) Attach(k *resource.Kind[corev1.Service]) {
	k.Wrap = newStorage
	k.BeginCreate = func(
		ctx context.Context, s *corev1.Service, _ *metav1.CreateOptions,
	) (func(context.Context, bool), error) {
		return nil, a.create(ctx, s)
	}
	k.BeginUpdate = func(
		ctx context.Context, s, old *corev1.Service, _ *metav1.UpdateOptions,
	) (func(context.Context, bool), error) {
		return nil, a.update(ctx, s, old)
	}
}

// create gives a new Service the values that it lacks. Nothing is taken before it is written, so
// that a dry run needs no care.
func (a *Allocator) create(ctx context.Context, s *corev1.Service) error {
	normalizeClusterIPs(s, nil)
	if err := a.initFamilies(s, nil); err != nil {
		return err
	}
	return a.pick(ctx, s, func(p *picker) error {
		if err := p.addAddresses(); err != nil {
			return err
		}
		return p.initPorts()
	})
}

// update gives a Service the values that its change needs, and keeps those that the client has
// left out.
func (a *Allocator) update(ctx context.Context, s, old *corev1.Service) error {
	keepAllocated(&s.Spec, &old.Spec)
	normalizeClusterIPs(s, old)
	if err := a.initFamilies(s, old); err != nil {
		return err
	}
	return a.pick(ctx, s, func(p *picker) error {
		if err := p.updateAddresses(old); err != nil {
			return err
		}
		return p.updatePorts(old)
	})
}

// view returns a view that shows all that this Allocator has learned is taken.
func (a *Allocator) view(ctx context.Context) (raftstore.View, error) {
	atLeast := a.newest.Load()
	view, err := a.cfg.Backend.View(ctx, raftstore.ViewOptions{Stale: true})
	if err == nil && view.Revision() < atLeast {
		view, err = a.cfg.Backend.View(ctx, raftstore.ViewOptions{MinRevision: atLeast})
	}
	if err != nil {
		return nil, storeerror.OfRead(err)
	}
	return view, nil
}

// learn makes later views show a revision.
func (a *Allocator) learn(revision uint64) {
	for seen := a.newest.Load(); seen < revision && !a.newest.CompareAndSwap(seen, revision); {
		seen = a.newest.Load()
	}
}

// freeAddress reports whether an address is free.
func (a *Allocator) freeAddress(view raftstore.View, address netip.Addr) bool {
	if _, reserved := view.Get(addressKey(address)); reserved {
		return false
	}
	_, shown := view.Get(a.cfg.Addresses.Key(address.String()))
	return !shown
}

func freePort(view raftstore.View, port int32) bool {
	_, reserved := view.Get(portKey(port))
	return !reserved
}

// The causes for which a value is refused, with upstream's wording.
var (
	errAddressTaken = errors.New("provided IP is already allocated")
	errPortTaken    = errors.New("provided port is already allocated")
	errOtherNetwork = errors.New("the provided network does not match the current range")
	errFull         = errors.New("range is full")
)

var serviceKind = corev1.SchemeGroupVersion.WithKind("Service").GroupKind()

package services

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/tools/record"

	"github.com/barque/barque/apiserver/leaderterm"
	"github.com/barque/barque/apiserver/storeerror"
	"github.com/barque/barque/raftstore"
)

const (
	// repairEvery is the pause between two rounds of repair.
	repairEvery = 3 * time.Minute
	// leakAge is how long a reservation must have been seen without its Service before it is freed.
	// Servers of older versions reserve before they write a Service; no request takes as long.
	leakAge = 3 * time.Minute
)

// Repair keeps reservations and IPAddress objects in line with the Services that exist, until ctx
// ends. It gives the Services of servers that knew no IPAddress theirs, and undoes what users
// change by hand. It is leader work: what one leader has seen, the next looks at anew. Its writes
// carry the context's term.
func (a *Allocator) Repair(ctx context.Context, recorder record.EventRecorder, logger *slog.Logger) {
	r := &repair{a: a, now: time.Now, recorder: recorder, logger: logger}
	for {
		if err := r.once(ctx); err != nil && ctx.Err() == nil {
			logger.Warn("repairing service addresses and node ports; trying again", "retryIn", repairEvery, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(repairEvery):
		}
	}
}

// repair is for one goroutine.
type repair struct {
	a        *Allocator
	now      func() time.Time
	recorder record.EventRecorder
	logger   *slog.Logger
	// leaks are the reservations that no Service of theirs has, by key.
	leaks map[string]leak
}

type leak struct {
	revision uint64
	since    time.Time
}

// once looks at all of it in one view and commits what the plan says. What has changed since the
// view is left for the next round.
func (r *repair) once(ctx context.Context) error {
	view, err := r.a.cfg.Backend.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		return storeerror.OfRead(err)
	}
	seen, err := r.a.inspect(ctx, view)
	if err != nil {
		return err
	}
	plan := &plan{inventory: seen, a: r.a, now: r.now(), before: r.leaks, leaks: map[string]leak{}}
	if err := plan.make(ctx); err != nil {
		return err
	}
	r.leaks = plan.leaks
	for _, n := range plan.notices {
		r.recorder.Event(n.service, corev1.EventTypeWarning, n.reason, n.message)
		r.logger.Error("a service's address or port is not its own", "service",
			n.service.Namespace+"/"+n.service.Name, "reason", n.message)
	}
	done := 0
	for _, txn := range plan.txns {
		txn.Term = leaderterm.Of(ctx)
		_, err := r.a.cfg.Backend.Commit(ctx, txn)
		var changed *raftstore.ConflictError
		if err != nil && !errors.As(err, &changed) {
			return storeerror.OfWrite(err)
		}
		if err == nil {
			done++
		}
	}
	if done > 0 {
		r.logger.Info("brought allocations in line with the Services", "repairs", done)
	}
	return nil
}

// inventory is what one view has of Services and of what belongs to them.
type inventory struct {
	view     raftstore.View
	services []*corev1.Service // sorted by key
	// holders of each reservation, by its key.
	holders map[string][]*corev1.Service
	// sharers of each address that load balancers have given.
	sharers   map[netip.Addr][]*corev1.Service
	addresses map[netip.Addr]*networkingv1.IPAddress
	cidrs     []*serviceCIDR
}

func (a *Allocator) inspect(ctx context.Context, view raftstore.View) (*inventory, error) {
	seen := &inventory{view: view, holders: map[string][]*corev1.Service{}, sharers: map[netip.Addr][]*corev1.Service{},
		addresses: map[netip.Addr]*networkingv1.IPAddress{}}
	var err error
	each(view, a.cfg.Services.Prefix(), func(item raftstore.Item) {
		s := &corev1.Service{}
		if decodeErr := a.cfg.Services.Decode(ctx, item, s); decodeErr != nil {
			err = errors.Join(err, fmt.Errorf("read %s: %w", item.Key, decodeErr))
			return
		}
		seen.services = append(seen.services, s)
		has := holdingsOf(s)
		for address := range has.addresses {
			seen.holders[addressKey(address)] = append(seen.holders[addressKey(address)], s)
		}
		for port := range has.ports {
			seen.holders[portKey(port)] = append(seen.holders[portKey(port)], s)
		}
		outside := balancedOf(s)
		for port := range outside.ports {
			seen.holders[takenKey(port)] = append(seen.holders[takenKey(port)], s)
		}
		for address := range outside.addresses {
			seen.sharers[address] = append(seen.sharers[address], s)
		}
	})
	each(view, a.cfg.Addresses.Prefix(), func(item raftstore.Item) {
		object := &networkingv1.IPAddress{}
		if decodeErr := a.cfg.Addresses.Decode(ctx, item, object); decodeErr != nil {
			err = errors.Join(err, fmt.Errorf("read %s: %w", item.Key, decodeErr))
			return
		}
		if address, ok := parseAddress(object.Name); ok {
			seen.addresses[address] = object
		}
	})
	if err != nil {
		return nil, err // nothing is judged by half of the facts
	}
	seen.cidrs, err = a.cidrs.in(ctx, view)
	return seen, err
}

func each(view raftstore.View, prefix string, f func(raftstore.Item)) {
	view.Ascend(prefix, "", func(item raftstore.Item) bool {
		f(item)
		return true
	})
}

// plan is what a round of repair is to do.
type plan struct {
	*inventory
	a      *Allocator
	now    time.Time
	before map[string]leak

	txns    []raftstore.Txn
	notices []notice
	leaks   map[string]leak
}

// notice is for a person, who has to choose which Service is made again.
type notice struct {
	service         *corev1.Service
	reason, message string
}

func (p *plan) make(ctx context.Context) error {
	for _, prefix := range []string{addressPrefix, portPrefix, takenPrefix} {
		each(p.view, prefix, p.judge)
	}
	if err := p.keepBalanced(); err != nil {
		return err
	}
	for _, s := range p.services {
		has := holdingsOf(s)
		for _, address := range missing(has.addresses, nil, netip.Addr.Compare) {
			if err := p.keepAddress(ctx, s, address); err != nil {
				return err
			}
		}
		for _, port := range missing(has.ports, nil, func(a, b int32) int { return int(a - b) }) {
			p.keepPort(s, port)
		}
	}
	p.dropOrphans()
	return nil
}

// judge frees a reservation whose owner has not had the value for long enough, or hands it over to
// the Service that has it.
func (p *plan) judge(item raftstore.Item) {
	holders := p.holders[item.Key]
	if slices.ContainsFunc(holders, func(s *corev1.Service) bool { return owner(s) == string(item.Value) }) {
		return
	}
	if !p.leaked(item.Key, item.ModRevision) {
		return
	}
	txn := raftstore.Txn{
		Require: []raftstore.Precondition{{Key: item.Key, ModRevision: item.ModRevision}},
		Ops:     []raftstore.Op{{Kind: raftstore.Delete, Key: item.Key}},
	}
	if len(holders) > 0 {
		txn.Require = append(txn.Require, p.unchanged(holders[0]))
		txn.Ops[0] = raftstore.Op{Kind: raftstore.Put, Key: item.Key, Value: []byte(owner(holders[0]))}
	}
	p.txns = append(p.txns, txn)
}

// unchanged demands that a Service is as the view has it.
func (p *plan) unchanged(s *corev1.Service) raftstore.Precondition {
	revision, _ := resourceVersion(s) // the store has set it
	return raftstore.Precondition{Key: p.a.cfg.Services.Key(s.Namespace + "/" + s.Name), ModRevision: revision}
}

// reserve adds to a transaction the reservation that a Service lacks. It is false when another
// Service has it.
func (p *plan) reserve(txn *raftstore.Txn, s *corev1.Service, key string) bool {
	item, reserved := p.view.Get(key)
	if !reserved {
		if p.holders[key][0] != s {
			return false
		}
		txn.Require = append(txn.Require, raftstore.Precondition{Key: key})
		txn.Ops = append(txn.Ops, raftstore.Op{Kind: raftstore.Put, Key: key, Value: []byte(owner(s))})
		return true
	}
	return string(item.Value) == owner(s)
}

// keepAddress makes the reservation and the IPAddress object of an address that a Service has.
func (p *plan) keepAddress(ctx context.Context, s *corev1.Service, address netip.Addr) error {
	txn := raftstore.Txn{Require: []raftstore.Precondition{p.unchanged(s)}}
	if !p.reserve(&txn, s, addressKey(address)) {
		if len(p.holders[addressKey(address)]) > 1 {
			p.notice(s, "ClusterIPAlreadyAllocated",
				"Cluster IP [%v]:%s was assigned to multiple services; please recreate service", familyOf(address),
				address)
		}
		return nil // what is no Service's reservation is judged as a leak
	}
	object := p.addresses[address]
	switch {
	case !slices.ContainsFunc(p.cidrs, func(c *serviceCIDR) bool { return c.contains(address) }):
		p.notice(s, "ClusterIPOutOfRange",
			"Cluster IP [%v]: %s is not within any configured Service CIDR; please recreate service", familyOf(address),
			address)
	case object != nil && refersTo(object, s) && hasLabels(object, address):
	default:
		put, err := p.a.cfg.Addresses.Put(ctx, address.String(), newIPAddress(address, s))
		if err != nil {
			return err
		}
		item, _ := p.view.Get(put.Key) // absent is revision 0
		txn.Require = append(txn.Require, raftstore.Precondition{Key: put.Key, ModRevision: item.ModRevision})
		txn.Ops = append(txn.Ops, put)
	}
	if len(txn.Ops) > 0 {
		p.txns = append(p.txns, txn)
	}
	return nil
}

func hasLabels(object *networkingv1.IPAddress, address netip.Addr) bool {
	return object.Labels[networkingv1.LabelManagedBy] == managedBy &&
		object.Labels[networkingv1.LabelIPAddressFamily] == string(familyOf(address))
}

// keepPort makes the reservation of a node port that a Service has.
func (p *plan) keepPort(s *corev1.Service, port int32) {
	txn := raftstore.Txn{Require: []raftstore.Precondition{p.unchanged(s)}}
	switch {
	case !p.reserve(&txn, s, portKey(port)):
		if len(p.holders[portKey(port)]) > 1 {
			p.notice(s, "PortAlreadyAllocated", "Port %d was assigned to multiple services; please recreate service",
				port)
		}
	case !p.a.ports.Contains(port):
		p.notice(s, "PortOutOfRange", "Port %d is not within the port range %s; please recreate service", port,
			p.a.ports)
	}
	if len(txn.Ops) > 0 {
		p.txns = append(p.txns, txn)
	}
}

// dropOrphans deletes the IPAddress objects that are marked as made here, and are no Service's.
// Those that others make, such as the controllers of gateways, are left.
func (p *plan) dropOrphans() {
	for address, object := range p.addresses {
		if object.Labels[networkingv1.LabelManagedBy] != managedBy || len(p.holders[addressKey(address)]) > 0 {
			continue
		}
		key := p.a.cfg.Addresses.Key(object.Name)
		item, _ := p.view.Get(key)
		p.txns = append(p.txns, raftstore.Txn{
			Require: []raftstore.Precondition{{Key: key, ModRevision: item.ModRevision}},
			Ops:     []raftstore.Op{{Kind: raftstore.Delete, Key: key}},
		})
	}
}

func (p *plan) notice(s *corev1.Service, reason, message string, args ...any) {
	p.notices = append(p.notices, notice{s, reason, fmt.Sprintf(message, args...)})
}

// Package proxy is the node's service proxy, of one IP family. It makes the kernel lead new
// connections to services (cluster addresses, node ports, external and load-balancer addresses) and
// to host ports on to pods. It owns the nftables table "barque" of its family in the process's
// network namespace with all of its contents.
//
// One way leads from objects to packets:
//
//	Service with its EndpointSlices, Pod ──claimed──▶ part ──book──▶ Rules, Delta ──table──▶ kernel
//
// claimed is pure, and visits one changed object. book combines the parts of all objects, and
// computes the changes. table has no choices left to make. Invariants:
//
//   - The rules are those of all objects together, whatever the order of changes.
//   - A change is one nftables transaction: no packet ever meets half of one.
//   - The kernel has the Rules in memory, or the whole table is written again: at the start, after
//     a
//     failure, and when another program has changed it.
//   - Nothing is removed when the proxy stops: pods and services continue. Purge removes it.
//
// Not here: network policy (package policy).
package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/network/nft"
	"github.com/barque/barque/network/pace"
)

// Config is a Proxy's configuration.
type Config struct {
	NodeName       string
	Services       coreinformers.ServiceInformer
	EndpointSlices discoveryinformers.EndpointSliceInformer
	// Nodes has the zone of this node. Without it zones are ignored.
	Nodes coreinformers.NodeInformer
	// Pods needs to hold this node's pods only. Without it there are no host ports.
	Pods coreinformers.PodInformer
	// PodNetwork holds the addresses of all pods of the cluster, ServiceNetwork those of all
	// services. Their family is that of the proxy.
	PodNetwork, ServiceNetwork netip.Prefix
	// Local are destinations that the node itself answers, at its own addresses, unless a service
	// has endpoints there.
	Local map[Frontend]Backend
	// OtherPlugin leaves it to another network plugin to hide the addresses of pods from the world.
	OtherPlugin bool
	Writer      *nft.Writer // of the node's tables
	// Secondary leaves the ports of health checks to the proxy of the other family.
	Secondary bool
	// HealthAddresses serve the node's own health. An example is 0.0.0.0:10256.
	HealthAddresses []string
	// ModeAddress serves the proxy's mode, such as 127.0.0.1:10249; "" for none.
	ModeAddress string
	Logger      *slog.Logger
}

// kernel is the proxy's interface of the kernel; table is the real one.
type kernel interface {
	replace(Rules) error
	change(Delta) error
}

// Proxy keeps the kernel's rules in step with the cluster.
type Proxy struct {
	config  Config
	family  nft.Family
	kernel  kernel
	flows   func(staleFlows) error
	trigger pace.Trigger
	health  *health
	meters  *meters

	readyOnce sync.Once
	ready     chan struct{}

	lost atomic.Bool // another program has changed the table

	watched *watched

	// Only sync, which never runs concurrently, touches these.
	book      *book
	zone      string     // of this node, in the book
	known     bool       // the kernel has the rules of the book
	leftovers staleFlows // still to delete, after a failure
}

// syncPace bounds how often the rules change.
var syncPace = pace.Pace{
	MinInterval: 50 * time.Millisecond,
	Every:       30 * time.Second,
	RetryMin:    500 * time.Millisecond,
	RetryMax:    30 * time.Second,
}

// New prepares a proxy and asks the informers to be started.
func New(config Config) (*Proxy, error) {
	for name, network := range map[string]netip.Prefix{"pod": config.PodNetwork, "service": config.ServiceNetwork} {
		if !network.IsValid() || network.Addr().Is6() != config.PodNetwork.Addr().Is6() {
			return nil,
				fmt.Errorf("service proxy: the %s network %v is not of one family with that of pods, %v", name, network,
					config.PodNetwork)
		}
	}
	if config.Writer == nil {
		config.Writer = new(nft.Writer)
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	family := nft.FamilyOf(config.PodNetwork.Addr())
	p := &Proxy{
		config: config,
		family: family,
		kernel: table{writer: config.Writer, family: family, podNetwork: config.PodNetwork.Masked(),
			serviceNetwork: config.ServiceNetwork.Masked(), local: localAddrs(config.Local),
			// IPv6 addresses that are not private have routes.
			routable: config.OtherPlugin || family == nft.IPv6 && !config.PodNetwork.Addr().IsPrivate()},
		flows:   deleteFlows,
		trigger: pace.NewTrigger(),
		health:  newHealth(config.Logger),
		meters:  newMeters(family, time.Now()),
		ready:   make(chan struct{}),
		watched: newWatched(),
		book:    newBook(),
	}
	_ = p.informers() // asking for them makes their factory start them
	return p, nil
}

// localAddrs returns the addresses of backends that are the node's own, each once.
func localAddrs(local map[Frontend]Backend) []netip.Addr {
	var addrs []netip.Addr
	for _, backend := range local {
		addrs = append(addrs, backend.Addr)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

func (p *Proxy) informers() []cache.SharedIndexInformer {
	informers := []cache.SharedIndexInformer{p.config.Services.Informer(), p.config.EndpointSlices.Informer()}
	if p.config.Nodes != nil {
		informers = append(informers, p.config.Nodes.Informer())
	}
	if p.config.Pods != nil {
		informers = append(informers, p.config.Pods.Informer())
	}
	return informers
}

// Family is that of the proxy's addresses.
func (p *Proxy) Family() nft.Family { return p.family }

// Ready is closed when the kernel has the rules for the first time.
func (p *Proxy) Ready() <-chan struct{} { return p.ready }

// Restore makes the proxy write its table again: another program has changed it.
func (p *Proxy) Restore() {
	p.lost.Store(true)
	p.trigger.Fire()
}

// Run keeps the rules in step until ctx ends. The rules stay.
func (p *Proxy) Run(ctx context.Context) error {
	var synced []cache.InformerSynced
	for _, informer := range p.informers() {
		registration, err := informer.AddEventHandler(p.handler())
		if err != nil {
			return pace.EndOr(ctx, fmt.Errorf("service proxy: watch: %w", err))
		}
		defer func() { _ = informer.RemoveEventHandler(registration) }() // fails only for another informer's
		synced = append(synced, registration.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil // ctx ended
	}
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() { p.health.run(ctx, p.config.HealthAddresses, p.config.ModeAddress) }) // ends with ctx
	pace.Run(ctx, syncPace, p.trigger, p.sync, func(err error) {
		p.health.failed(time.Now())
		p.config.Logger.Error("service proxy: cannot bring the rules up to date, trying again", "family", p.family,
			"err", err)
	})
	return nil
}

// handler fires the trigger for changes that may affect the rules.
func (p *Proxy) handler() cache.ResourceEventHandler {
	changed := func(old, now any) {
		object := now
		if object == nil {
			object = old
		}
		switch object := object.(type) {
		case *corev1.Pod:
			if !p.wantsHostPorts(object) {
				return
			}
		case *corev1.Node:
			if object.Name != p.config.NodeName {
				return
			}
		}
		p.meters.noted(object, time.Now())
		p.watched.note(old, now)
		p.trigger.Fire()
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { changed(nil, object) },
		UpdateFunc: func(old, object any) {
			was, wasNode := old.(*corev1.Node)
			is, isNode := object.(*corev1.Node)
			if isNode && wasNode && zoneOf(was) == zoneOf(is) && isEligible(was) == isEligible(is) {
				return // nodes report their state all the time
			}
			changed(old, object)
		},
		DeleteFunc: func(object any) { changed(object, nil) },
	}
}

func (p *Proxy) wantsHostPorts(pod *corev1.Pod) bool {
	if pod.Spec.NodeName != p.config.NodeName || pod.Spec.HostNetwork {
		return false
	}
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if port.HostPort != 0 {
				return true
			}
		}
	}
	return len(pod.Spec.InitContainers) > 0
}

// Collectors are the proxy's metrics.
func (p *Proxy) Collectors() []prometheus.Collector { return p.meters.all() }

// sync brings the kernel to the cluster's state.
func (p *Proxy) sync(context.Context) error {
	began, waiting := time.Now(), p.meters.waiting() // before the objects are read
	err := p.bring()
	p.meters.synced(began, time.Now(), waiting, err)
	return err
}

func (p *Proxy) bring() error {
	changed, err := p.changed()
	if err != nil {
		return err
	}
	if err := p.apply(p.book.update(changed)); err != nil {
		return err
	}
	var checks map[uint16]HealthCheck
	if !p.config.Secondary {
		checks = p.book.healthChecks()
	}
	p.health.succeeded(checks, time.Now())
	return nil
}

// apply brings the kernel to the rules of the book, which have changed by delta.
func (p *Proxy) apply(delta Delta, stale staleFlows) error {
	if p.lost.Swap(false) && p.known {
		p.config.Logger.Warn("service proxy: the nftables table was changed by another program, writing it again")
		p.known = false
	}
	stale.family = p.family
	p.leftovers = p.leftovers.merge(stale)
	if p.known && delta.Empty() && len(p.leftovers.allowed) == 0 {
		return nil
	}
	switch {
	case !p.known:
		if err := p.kernel.replace(p.book.rules); err != nil {
			return err
		}
	case !delta.Empty():
		// Until a success, the kernel's state is unknown.
		p.known = false
		if err := p.kernel.change(delta); err != nil {
			return err
		}
	}
	p.known = true
	p.readyOnce.Do(func() { close(p.ready) })
	for frontend := range p.leftovers.allowed { // leftovers may have changed since
		p.leftovers.allowed[frontend] = p.book.rules.reachable(frontend)
	}
	if err := p.flows(p.leftovers); err != nil {
		return err // the rules are written; leftovers are retried
	}
	p.leftovers = staleFlows{}
	return nil
}

func zoneOf(node *corev1.Node) string { return node.Labels[corev1.LabelTopologyZone] }

// node returns whether this node is to get traffic, and its zone; "" without one.
func (p *Proxy) node() (zone string) {
	if p.config.Nodes == nil {
		return ""
	}
	node, err := p.config.Nodes.Lister().Get(p.config.NodeName)
	p.health.setEligible(err == nil && isEligible(node))
	if err != nil {
		return ""
	}
	return zoneOf(node)
}

// changed returns the wishes of sources that have changed since the last time.
func (p *Proxy) changed() (map[source]*part, error) {
	sources := p.watched.take()
	own := source{kind: ofNode}
	if p.book.parts[own] == nil && len(p.config.Local) > 0 {
		sources[own] = struct{}{}
	}
	if zone := p.node(); zone != p.zone {
		p.zone = zone
		for of := range p.book.parts {
			sources[of] = struct{}{}
		}
	}
	parts := make(map[source]*part, len(sources))
	for of := range sources {
		next, err := p.part(of)
		if err != nil {
			p.watched.again(sources)
			return nil, err
		}
		parts[of] = next
	}
	return parts, nil
}

// part returns the present wishes of a source; nil if it is gone.
func (p *Proxy) part(of source) (*part, error) {
	snapshot := Snapshot{NodeName: p.config.NodeName, Family: p.family, Zone: p.zone, Local: p.config.Local}
	next := &part{source: of}
	switch of.kind {
	case ofNode:
		next.rules = claimed(snapshot, p.config.Local)
		return next, nil
	case ofService:
		service, err := p.config.Services.Lister().Services(of.namespace).Get(of.name)
		if err != nil {
			return nil, notFoundIsNil(err)
		}
		snapshot.Services, snapshot.Slices = []*corev1.Service{service}, p.watched.slicesOf(of)
		next.created, next.checks = service.CreationTimestamp.Time, healthChecks(snapshot)
	case ofPod:
		pod, err := p.config.Pods.Lister().Pods(of.namespace).Get(of.name)
		if err != nil {
			return nil, notFoundIsNil(err)
		}
		snapshot.Pods, next.created = []*corev1.Pod{pod}, pod.CreationTimestamp.Time
	}
	next.rules = claimed(snapshot, nil)
	return next, nil
}

func notFoundIsNil(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("service proxy: read: %w", err)
}

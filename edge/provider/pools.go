package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/edge/pool"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/internal/logline"
)

// showEvery bounds how often the statuses of pools follow the Services.
const showEvery = time.Second

// Run follows the pools and keeps their statuses, for one term of leadership. The informer of pools
// lives as long as the term: a server that does not lead has no use for it.
func (p *Provider) Run(ctx context.Context, config *rest.Config, changed func()) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	if p.cfg.Gateway == nil {
		return p.follow(ctx, client, changed)
	}
	return lifecycle.All(ctx,
		func(ctx context.Context) error { return p.follow(ctx, client, changed) },
		func(ctx context.Context) error { return p.cfg.Gateway.Follow(ctx, changed) })
}

func (p *Provider) follow(ctx context.Context, client dynamic.Interface, changed func()) error {
	p.set(nil, false)
	defer p.set(nil, false) // another server's from now on
	informer := dynamicinformer.NewFilteredDynamicInformer(
		client, pool.Resource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	dirty := make(chan struct{}, 1)
	touch := func() {
		select {
		case dirty <- struct{}{}:
		default:
		}
	}
	// The list is that of the informer, so a handler need not know all that has changed.
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { touch() },
		UpdateFunc: func(any, any) { touch() },
		DeleteFunc: func(any) { touch() },
	})
	if err != nil {
		return fmt.Errorf("watch AddressPools: %w", err)
	}
	ofServices, err := p.services.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { touch() },
		UpdateFunc: func(any, any) { touch() },
		DeleteFunc: func(any) { touch() },
	})
	if err != nil {
		return fmt.Errorf("watch Services: %w", err)
	}
	defer func() { _ = cache.ShutDownEventHandler(p.services, ofServices) }() // fails only for another informer's
	stopped := make(chan struct{})
	go func() { // ends with ctx, and follow after it
		defer close(stopped)
		informer.RunWithContext(ctx)
	}()
	defer func() { <-stopped }()
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return nil // ctx ended
	}
	for {
		if p.set(read(informer, p.cfg.warn), true) {
			changed()
		}
		if err := p.show(ctx, client); err != nil && ctx.Err() == nil {
			p.cfg.warn("cannot write the status of an AddressPool, trying again", err)
			touch()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(showEvery):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-dirty:
		}
	}
}

func (c Config) warn(message string, err error) {
	logline.Log(c.Logger, slog.LevelWarn, message, "err", err)
}

func read(informer cache.SharedIndexInformer, warn func(string, error)) []*pool.Object {
	var out []*pool.Object
	for _, obj := range informer.GetStore().List() {
		u, ok := obj.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		o, err := pool.Read(u)
		if err != nil {
			warn("an AddressPool is left out", err)
			continue
		}
		out = append(out, o)
	}
	return out
}

// set replaces the pools. It reports whether their specs, or the set of them, have changed.
func (p *Provider) set(pools []*pool.Object, known bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := map[types.UID]int64{}
	for _, o := range p.pools {
		before[o.UID] = o.Generation
	}
	changed := p.known != known || len(p.pools) != len(pools)
	for _, o := range pools {
		generation, had := before[o.UID]
		changed = changed || !had || generation != o.Generation
	}
	p.pools, p.known = pools, known
	return changed
}

// Pool is the state of an AddressPool.
type Pool struct {
	Name       string
	Used, Free int64
	// Ready means that it gives addresses. Reason and Message are those of its condition.
	Ready           bool
	Reason, Message string
	object          *pool.Object
}

// Pools returns the state of all pools, and none while this server does not lead.
func (p *Provider) Pools() []Pool {
	p.mu.Lock()
	objects := p.pools
	p.mu.Unlock()
	if len(objects) == 0 {
		return nil
	}
	var services []*corev1.Service
	for _, obj := range p.services.GetStore().List() {
		if s, ok := obj.(*corev1.Service); ok && s.Spec.Type == corev1.ServiceTypeLoadBalancer {
			services = append(services, s)
		}
	}
	reserved := p.reserved()
	byName := map[string]*pool.Object{}
	for _, o := range objects {
		byName[o.Name] = o
	}
	var out []Pool
	for _, j := range pool.Judge(objects, p.clusterRanges()) {
		of := Pool{Name: j.Pool.Name, Ready: !j.Pool.Faulty, Reason: j.Reason, Message: j.Message,
			object: byName[j.Pool.Name]}
		of.Used, of.Free = pool.Count(j.Pool, services, reserved)
		out = append(out, of)
	}
	return out
}

// Exists reports whether there is a pool of that name; known is false before the pools are known.
func (p *Provider) Exists(name string) (exists, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.pools, func(o *pool.Object) bool { return o.Name == name }), p.known
}

// addresses describes the metric of pools.
var addresses = prometheus.NewDesc("barque_edge_pool_addresses",
	"Addresses of an AddressPool, in the view of the leader, by state: used or free.", []string{"pool", "state"}, nil)

// Describe implements prometheus.Collector.
func (p *Provider) Describe(to chan<- *prometheus.Desc) { to <- addresses }

// Collect implements prometheus.Collector. A pool that is not ready gives none of its free
// addresses.
func (p *Provider) Collect(to chan<- prometheus.Metric) {
	for _, of := range p.Pools() {
		free := of.Free
		if !of.Ready {
			free = 0
		}
		to <- prometheus.MustNewConstMetric(addresses, prometheus.GaugeValue, float64(of.Used), of.Name, "used")
		to <- prometheus.MustNewConstMetric(addresses, prometheus.GaugeValue, float64(free), of.Name, "free")
	}
}

// show writes the statuses of pools that are not as they should be.
func (p *Provider) show(ctx context.Context, client dynamic.Interface) error {
	for _, of := range p.Pools() {
		o := of.object
		next := pool.Status{Conditions: append([]metav1.Condition(nil), o.Status.Conditions...), Used: of.Used,
			Free: of.Free}
		ready := metav1.Condition{Type: pool.Ready, Status: metav1.ConditionTrue, Reason: of.Reason,
			Message:            of.Message,
			ObservedGeneration: o.Generation}
		if !of.Ready {
			ready.Status = metav1.ConditionFalse
		}
		meta.SetStatusCondition(&next.Conditions, ready)
		if equality.Semantic.DeepEqual(o.Status, next) {
			continue
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": o.UID, "resourceVersion": o.ResourceVersion}, "status": next,
		})
		if err != nil {
			return err
		}
		pools := client.Resource(pool.Resource)
		_, err = pools.Patch(ctx, o.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("AddressPool %s: %w", o.Name, err)
		}
	}
	return nil
}

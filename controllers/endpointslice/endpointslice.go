// Package endpointslice keeps the EndpointSlices of every Service with a selector in step with the
// pods that the selector matches. k8s.io/endpointslice decides the contents of each slice. This
// package passes it the changes, and delays it while its informer does not show the slices that it
// wrote last.
package endpointslice

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	slices "k8s.io/endpointslice"
	"k8s.io/endpointslice/topologycache"
	"k8s.io/endpointslice/util"
	"k8s.io/klog/v2"

	"github.com/barque/barque/controllers/pods"
	"github.com/barque/barque/controllers/runtime"
)

// ManagedBy is the value of the managed-by label of the slices that are this controller's.
const ManagedBy = "endpointslice-controller.k8s.io"

// perSlice is how many endpoints one slice holds at most.
const perSlice = 100

// byService indexes slices by namespace and Service.
const byService = "barque/service"

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// Workers is how many Services are worked on at once. Default 5.
	Workers int
}

// Controller reconciles the slices of Services.
type Controller struct {
	cfg      Config
	services cache.SharedIndexInformer
	pods     cache.SharedIndexInformer
	nodes    cache.SharedIndexInformer
	slices   cache.SharedIndexInformer

	listServices corelisters.ServiceLister
	listPods     corelisters.PodLister
	listNodes    corelisters.NodeLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.Workers <= 0 {
		cfg.Workers = 5
	}
	core := cfg.Informers.Core().V1()
	c := &Controller{
		cfg:      cfg,
		services: core.Services().Informer(), listServices: core.Services().Lister(),
		pods: core.Pods().Informer(), listPods: core.Pods().Lister(),
		nodes: core.Nodes().Informer(), listNodes: core.Nodes().Lister(),
		slices: cfg.Informers.Discovery().V1().EndpointSlices().Informer(),
	}
	index := runtime.EnsureIndex(c.slices, byService, func(obj any) ([]string, error) {
		if slice, ok := obj.(*discoveryv1.EndpointSlice); ok {
			return []string{serviceOf(slice).String()}, nil
		}
		return nil, nil
	})
	return c, errors.Join(index, pods.EnsureNodeIndex(c.pods))
}

func serviceOf(slice *discoveryv1.EndpointSlice) runtime.Key {
	return runtime.Key{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
}

// Run reconciles for one term of leadership. The keys are Services, and one for all nodes.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, "endpoint-slice-controller")
	defer stop()
	t := &term{
		Controller: c,
		written:    util.NewEndpointSliceTracker(), triggers: util.NewTriggerTimeTracker(),
		topology: topologycache.NewTopologyCache(),
	}
	t.reconciler = slices.NewReconciler(client, c.listNodes, perSlice, t.written, t.topology, recorder, ManagedBy,
		slices.WithPreferSameTrafficDistributionEnabled(true))
	t.loop = runtime.NewLoop("endpointslice", c.cfg.Workers, c.cfg.Logger, t.reconcile)
	// Slices that are made before the nodes are known would have no hints.
	if err := t.setNodes(); err != nil {
		return err
	}
	runtime.Watch(t.loop, c.nodes, t.ofNode)
	runtime.Watch(t.loop, c.services, runtime.Itself[corev1.Service])
	runtime.Watch(t.loop, c.pods,
		func(old, now *corev1.Pod) []runtime.Key { return pods.ServicesOf(c.listServices, old, now) })
	runtime.Watch(t.loop, c.slices, t.ofSlice)
	return t.loop.Run(ctx)
}

// term is what belongs to one term of leadership.
type term struct {
	*Controller
	written    *util.EndpointSliceTracker
	triggers   *util.TriggerTimeTracker
	topology   *topologycache.TopologyCache
	reconciler *slices.Reconciler
	loop       *runtime.Loop
	looked     time.Time // when all nodes were last read
}

// ofSlice wakes a Service whose slices somebody else changed. The library's own writes come back
// here too and are told apart by their generation.
func (t *term) ofSlice(old, now *discoveryv1.EndpointSlice) []runtime.Key {
	switch {
	case now == nil:
		if t.reconciler.ManagedByController(old) && t.written.Has(old) && !t.written.HandleDeletion(old) {
			return []runtime.Key{serviceOf(old)}
		}
	case old != nil && serviceOf(old) != serviceOf(now):
		return []runtime.Key{serviceOf(old), serviceOf(now)}
	case old != nil && t.reconciler.ManagedByChanged(old, now):
		return []runtime.Key{serviceOf(now)}
	case t.reconciler.ManagedByController(now) && t.written.ShouldSync(now):
		return []runtime.Key{serviceOf(now)}
	}
	return nil
}

func (t *term) reconcile(_ context.Context, key runtime.Key) (time.Duration, error) {
	if key == theNodes {
		// A key is with one worker at a time.
		if wait := nodesEvery - time.Since(t.looked); wait > 0 {
			return max(wait, 100*time.Millisecond), nil // shorter ones would count as failures
		}
		return 0, t.setNodes()
	}
	service, err := t.listServices.Services(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		// The slices go with the Service, by the garbage collector.
		t.triggers.DeleteService(key.Namespace, key.Name)
		t.reconciler.DeleteService(key.Namespace, key.Name)
		t.written.DeleteService(key.Namespace, key.Name)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName || service.Spec.Selector == nil ||
		service.DeletionTimestamp != nil {
		return 0, nil
	}
	selected, err := t.listPods.Pods(key.Namespace).List(labels.Set(service.Spec.Selector).AsSelectorPreValidated())
	if err != nil {
		return 0, err
	}
	mine, err := t.mine(key)
	if err != nil {
		return 0, err
	}
	if t.written.StaleSlices(service, mine) {
		// The event that shows them wakes nobody, as it is of our own write: look again soon.
		return runtime.Retry, nil
	}
	since := t.triggers.ComputeEndpointLastChangeTriggerTime(key.Namespace, service, selected)
	if err := t.reconciler.Reconcile(klog.Background(), service, selected, mine, since); err != nil {
		return 0, fmt.Errorf("EndpointSlices of Service %s: %w", key, err)
	}
	return 0, nil
}

// mine returns the Service's slices that are this controller's and not on their way out.
func (t *term) mine(key runtime.Key) ([]*discoveryv1.EndpointSlice, error) {
	all, err := runtime.ByIndex[discoveryv1.EndpointSlice](t.slices, byService, key.String())
	if err != nil {
		return nil, err
	}
	var mine []*discoveryv1.EndpointSlice
	for _, slice := range all {
		if slice.DeletionTimestamp == nil && slice.Labels[discoveryv1.LabelManagedBy] == ManagedBy {
			mine = append(mine, slice)
		}
	}
	return mine, nil
}

// Package endpointslicemirroring mirrors Endpoints into EndpointSlices, because all routing reads
// EndpointSlices (KEP-0752). It is for Endpoints that users and older operators write for Services
// without a selector.
package endpointslicemirroring

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"

	"github.com/barque/barque/controllers/runtime"
)

//lint:file-ignore SA1019 Endpoints are deprecated, and still written by users that this is for.

// ManagedBy is the value of the managed-by label of the slices that are this controller's.
const ManagedBy = "endpointslicemirroring-controller.k8s.io"

// byService indexes this controller's slices by namespace and Service.
const byService = "barque/mirror-of"

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// Workers is how many Endpoints are worked on at once. Default 5.
	Workers int
}

// Controller mirrors Endpoints.
type Controller struct {
	cfg       Config
	services  cache.SharedIndexInformer
	endpoints cache.SharedIndexInformer
	slices    cache.SharedIndexInformer

	listServices  corelisters.ServiceLister
	listEndpoints corelisters.EndpointsLister
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
		endpoints: core.Endpoints().Informer(), listEndpoints: core.Endpoints().Lister(),
		slices: cfg.Informers.Discovery().V1().EndpointSlices().Informer(),
	}
	return c, runtime.EnsureIndex(c.slices, byService, func(obj any) ([]string, error) {
		if slice, ok := obj.(*discoveryv1.EndpointSlice); ok && slice.Labels[discoveryv1.LabelManagedBy] == ManagedBy {
			return []string{mirrored(slice).String()}, nil
		}
		return nil, nil
	})
}

// mirrored is the key of the Endpoints, and of the Service, that a slice is of.
func mirrored(slice *discoveryv1.EndpointSlice) runtime.Key {
	return runtime.Key{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
}

// Run reconciles for one term of leadership. The keys are Endpoints, which share their Services'
// names.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, "endpoint-slice-mirroring-controller")
	defer stop()
	t := &term{Controller: c, client: client, events: recorder}
	t.loop = runtime.NewLoop("endpointslicemirroring", c.cfg.Workers, c.cfg.Logger, t.reconcile)
	runtime.Watch(t.loop, c.services, func(old, now *corev1.Service) []runtime.Key {
		if old != nil && now != nil && (old.Spec.Selector == nil) == (now.Spec.Selector == nil) {
			return nil
		}
		return runtime.Itself(old, now)
	})
	runtime.Watch(t.loop, c.endpoints, runtime.Itself[corev1.Endpoints])
	runtime.Watch(t.loop, c.slices, ofSlice)
	return t.loop.Run(ctx)
}

type term struct {
	*Controller
	client kubernetes.Interface
	events record.EventRecorder
	loop   *runtime.Loop
}

// ofSlice wakes the Endpoints of a mirror that another client changed.
func ofSlice(old, now *discoveryv1.EndpointSlice) (keys []runtime.Key) {
	for _, slice := range []*discoveryv1.EndpointSlice{old, now} {
		if slice != nil && slice.Labels[discoveryv1.LabelManagedBy] == ManagedBy {
			keys = append(keys, mirrored(slice))
		}
	}
	return keys
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	are, err := runtime.ByIndex[discoveryv1.EndpointSlice](t.slices, byService, key.String())
	if err != nil {
		return 0, err
	}
	endpoints, err := t.toMirror(key)
	if err != nil {
		return 0, err
	}
	if endpoints == nil {
		return 0, t.write(ctx, key, plan{delete: are})
	}
	p := decide(endpoints, are)
	if p.invalid > 0 {
		t.events.Eventf(endpoints, corev1.EventTypeWarning, "InvalidIPAddress",
			"Skipped %d invalid IP addresses when mirroring to EndpointSlices", p.invalid)
	}
	if p.surplus > 0 {
		t.events.Eventf(endpoints, corev1.EventTypeWarning, "TooManyAddressesToMirror",
			"A max of %d addresses can be mirrored to EndpointSlices per Endpoints subset. %d addresses were skipped",
			perSubset, p.surplus)
	}
	return 0, t.write(ctx, key, p)
}

// toMirror returns the Endpoints of the key, or nil when they have no mirror. Their Service may not
// exist, or have a selector (its slices are another controller's). They may opt out, or be a lock
// of a leader election.
func (t *term) toMirror(key runtime.Key) (*corev1.Endpoints, error) {
	endpoints, err := t.listEndpoints.Endpoints(key.Namespace).Get(key.Name)
	if err != nil {
		return nil, ignoreNotFound(err)
	}
	_, lock := endpoints.Annotations[resourcelock.LeaderElectionRecordAnnotationKey]
	if lock || endpoints.Labels[discoveryv1.LabelSkipMirror] == "true" || endpoints.DeletionTimestamp != nil {
		return nil, nil
	}
	service, err := t.listServices.Services(key.Namespace).Get(key.Name)
	if err != nil {
		return nil, ignoreNotFound(err)
	}
	if service.Spec.Selector != nil {
		return nil, nil
	}
	return endpoints, nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// write carries a plan out. Its writes are seen before the key is reconciled again.
func (t *term) write(ctx context.Context, key runtime.Key, p plan) error {
	api := t.client.DiscoveryV1().EndpointSlices(key.Namespace)
	for _, slice := range p.create {
		done, err := api.Create(ctx, slice, metav1.CreateOptions{})
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("creating an EndpointSlice for Endpoints %s: %w", key, err)
		}
		t.loop.Writes().Wrote(key, t.slices, done.ResourceVersion)
	}
	for _, slice := range p.update {
		done, err := api.Update(ctx, slice, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("updating EndpointSlice %s of Endpoints %s: %w", slice.Name, key, err)
		}
		t.loop.Writes().Wrote(key, t.slices, done.ResourceVersion)
	}
	for _, slice := range p.delete {
		if slice.DeletionTimestamp != nil {
			continue
		}
		err := api.Delete(ctx, slice.Name,
			metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(slice.UID))})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting EndpointSlice %s of Endpoints %s: %w", slice.Name, key, err)
		}
		t.loop.Writes().Deleted(key, t.slices, runtime.KeyOf(slice), slice.UID)
	}
	return nil
}

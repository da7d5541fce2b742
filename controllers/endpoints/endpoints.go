// Package endpoints keeps the Endpoints object of every Service with a selector, for the clients
// that do not read EndpointSlices. Nothing of Barque's own reads it.
package endpoints

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/pods"
	"github.com/barque/barque/controllers/runtime"
)

//lint:file-ignore SA1019 Endpoints are deprecated, and still read by clients that this is for.

// Label and value by which the objects of this controller are known.
const (
	managedBy = "endpoints.kubernetes.io/managed-by"
	ManagedBy = "endpoint-controller"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// Workers is how many Services are worked on at once. Default 5.
	Workers int
}

// Controller reconciles Endpoints.
type Controller struct {
	cfg       Config
	services  cache.SharedIndexInformer
	pods      cache.SharedIndexInformer
	endpoints cache.SharedIndexInformer

	listServices  corelisters.ServiceLister
	listPods      corelisters.PodLister
	listEndpoints corelisters.EndpointsLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.Workers <= 0 {
		cfg.Workers = 5
	}
	core := cfg.Informers.Core().V1()
	return &Controller{
		cfg:      cfg,
		services: core.Services().Informer(), listServices: core.Services().Lister(),
		pods: core.Pods().Informer(), listPods: core.Pods().Lister(),
		endpoints: core.Endpoints().Informer(), listEndpoints: core.Endpoints().Lister(),
	}, nil
}

// Run reconciles for one term of leadership. The keys are Services.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	t := &term{Controller: c, client: client}
	t.loop = runtime.NewLoop("endpoints", c.cfg.Workers, c.cfg.Logger, t.reconcile)
	runtime.Watch(t.loop, c.services, runtime.Itself[corev1.Service])
	runtime.Watch(t.loop, c.pods,
		func(old, now *corev1.Pod) []runtime.Key { return pods.ServicesOf(c.listServices, old, now) })
	runtime.Watch(t.loop, c.endpoints, runtime.Itself[corev1.Endpoints])
	return t.loop.Run(ctx)
}

type term struct {
	*Controller
	client kubernetes.Interface
	loop   *runtime.Loop
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	is, err := t.listEndpoints.Endpoints(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		is, err = nil, nil
	}
	if err != nil {
		return 0, err
	}
	service, err := t.listServices.Services(key.Namespace).Get(key.Name)
	switch {
	case apierrors.IsNotFound(err):
		return 0, t.remove(ctx, key, is)
	case err != nil:
		return 0, err
	case service.Spec.Selector == nil || service.Spec.Type == corev1.ServiceTypeExternalName ||
		service.DeletionTimestamp != nil:
		return 0, nil
	}
	selected, err := t.listPods.Pods(key.Namespace).List(labels.Set(service.Spec.Selector).AsSelectorPreValidated())
	if err != nil {
		return 0, err
	}
	return 0, t.write(ctx, key, is, decide(service, selected, is))
}

func (t *term) write(ctx context.Context, key runtime.Key, is, want *corev1.Endpoints) (err error) {
	api := t.client.CoreV1().Endpoints(key.Namespace)
	switch {
	case is == nil:
		want, err = api.Create(ctx, want, metav1.CreateOptions{})
	case equality.Semantic.DeepEqual(is, want):
		return nil
	default:
		want, err = api.Update(ctx, want, metav1.UpdateOptions{})
	}
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case err != nil:
		return fmt.Errorf("writing Endpoints %s: %w", key, err)
	}
	t.loop.Writes().Wrote(key, t.endpoints, want.ResourceVersion)
	return nil
}

// remove deletes the object of a deleted Service. Objects that users made stay.
func (t *term) remove(ctx context.Context, key runtime.Key, is *corev1.Endpoints) error {
	if is == nil || is.Labels[managedBy] != ManagedBy {
		return nil
	}
	err := t.client.CoreV1().Endpoints(key.Namespace).Delete(ctx, key.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(is.UID))})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting Endpoints %s: %w", key, err)
	}
	return nil
}

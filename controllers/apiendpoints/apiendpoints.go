// Package apiendpoints keeps the endpoints of the Service "kubernetes" in the namespace "default"
// at the ready API servers, so that pods reach one of them.
//
// Gossip provides the possible servers; it takes some seconds to declare a server dead. Each of
// them is probed twice a second for readiness. So a server that announces its stop leaves the
// endpoints before it closes its port, and a dead server leaves within a second. Probes cost the
// datastore nothing: only a change is written. A server that a new leader has not probed yet keeps
// its place.
//
// When no server seems to be ready, the last endpoints stay. The controller runs on a server, so
// that must be a mistake, and an empty Service would cut off every pod.
package apiendpoints

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/runtime"
)

//lint:file-ignore SA1019 Endpoints are deprecated, and still read by clients that this is for.

// The Service that this controller is for, and the mark of the slices that it made.
const (
	namespace = metav1.NamespaceDefault
	name      = "kubernetes"
	managedBy = "apiendpoints.barque"
)

// Servers provides the addresses of the API servers.
type Servers interface {
	// Servers returns the addresses of the living API servers.
	Servers() []netip.AddrPort
	// Changed returns a channel that is closed at the next change of that list.
	Changed() <-chan struct{}
}

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Servers   Servers
	// Ready asks an API server whether it is ready; nil is yes. An error that is no timeout is an
	// answer of the server, or of its machine: it is not.
	Ready  func(ctx context.Context, server netip.AddrPort) error
	Logger *slog.Logger
}

// Controller writes the endpoints of the API.
type Controller struct {
	cfg           Config
	endpoints     cache.SharedIndexInformer
	slices        cache.SharedIndexInformer
	listEndpoints corelisters.EndpointsLister
	listSlices    discoverylisters.EndpointSliceLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.Servers == nil || cfg.Ready == nil {
		return nil, errors.New("controllers/apiendpoints: Servers and Ready are required")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	core, discovery := cfg.Informers.Core().V1(), cfg.Informers.Discovery().V1()
	return &Controller{
		cfg:       cfg,
		endpoints: core.Endpoints().Informer(), listEndpoints: core.Endpoints().Lister(),
		slices: discovery.EndpointSlices().Informer(), listSlices: discovery.EndpointSlices().Lister(),
	}, nil
}

var key = runtime.Key{Namespace: namespace, Name: name}

// Run reconciles for one term of leadership. There is one key.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	t := &term{Controller: c, client: client}
	t.loop = runtime.NewLoop("apiendpoints", 1, c.cfg.Logger, t.reconcile)
	runtime.Watch(t.loop, c.endpoints, func(old, now *corev1.Endpoints) []runtime.Key { return ours(old, now) })
	runtime.Watch(t.loop, c.slices, func(old, now *discoveryv1.EndpointSlice) []runtime.Key {
		for _, s := range []*discoveryv1.EndpointSlice{old, now} {
			if s != nil && s.Namespace == namespace && s.Labels[discoveryv1.LabelServiceName] == name {
				return []runtime.Key{key}
			}
		}
		return nil
	})
	t.probers = probers{
		probe: c.cfg.Ready, changed: func() { t.loop.Add(key) }, logger: c.cfg.Logger,
		servers: map[netip.AddrPort]*probedServer{},
	}
	var wg sync.WaitGroup
	defer t.probers.running.Wait()
	defer wg.Wait() // it starts them
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() {
		for {
			changed := c.cfg.Servers.Changed()
			t.probers.follow(ctx, c.cfg.Servers.Servers())
			t.loop.Add(key)
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	})
	return t.loop.Run(ctx)
}

func ours(old, now *corev1.Endpoints) []runtime.Key {
	if now == nil {
		now = old
	}
	if now.Namespace != namespace || now.Name != name {
		return nil
	}
	return []runtime.Key{key}
}

type term struct {
	*Controller
	client  kubernetes.Interface
	loop    *runtime.Loop
	probers probers
}

func (t *term) reconcile(ctx context.Context, _ runtime.Key) (time.Duration, error) {
	servers, unknown := t.probers.ready(t.cfg.Servers.Servers())
	// An unprobed server keeps its place from the last leader. Its first answer requeues the key.
	is, err := t.listEndpoints.Endpoints(namespace).Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, err
	}
	servers = append(servers, among(unknown, is)...)
	if len(servers) == 0 {
		return time.Second, nil
	}
	return 0, errors.Join(t.writeEndpoints(ctx, endpointsOf(servers)), t.writeSlices(ctx, slicesOf(servers)))
}

// among returns those of the servers that the Endpoints name; nil names none.
func among(servers []netip.AddrPort, is *corev1.Endpoints) []netip.AddrPort {
	if is == nil {
		return nil
	}
	var out []netip.AddrPort
	for _, s := range servers {
		addr := s.Addr().Unmap().WithZone("").String()
		if slices.ContainsFunc(is.Subsets, func(subset corev1.EndpointSubset) bool {
			return slices.ContainsFunc(subset.Addresses, func(a corev1.EndpointAddress) bool { return a.IP == addr }) &&
				slices.ContainsFunc(subset.Ports, func(p corev1.EndpointPort) bool { return p.Port == int32(s.Port()) })
		}) {
			out = append(out, s)
		}
	}
	return out
}

func (t *term) writeEndpoints(ctx context.Context, want *corev1.Endpoints) error {
	is, err := t.listEndpoints.Endpoints(namespace).Get(name)
	api := t.client.CoreV1().Endpoints(namespace)
	switch {
	case apierrors.IsNotFound(err):
		is, err = api.Create(ctx, want, metav1.CreateOptions{})
	case err == nil && equality.Semantic.DeepEqual(is.Subsets, want.Subsets) &&
		is.Labels[discoveryv1.LabelSkipMirror] == "true":
		return nil
	case err == nil:
		want.ObjectMeta = *is.ObjectMeta.DeepCopy()
		metav1.SetMetaDataLabel(&want.ObjectMeta, discoveryv1.LabelSkipMirror, "true")
		is, err = api.Update(ctx, want, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing the Endpoints of the API: %w", err)
	}
	t.loop.Writes().Wrote(key, t.endpoints, is.ResourceVersion)
	return nil
}

func (t *term) writeSlices(ctx context.Context, want []*discoveryv1.EndpointSlice) error {
	selector := labels.Set{discoveryv1.LabelServiceName: name}.AsSelector()
	existing, err := t.listSlices.EndpointSlices(namespace).List(selector)
	if err != nil {
		return err
	}
	have := map[string]*discoveryv1.EndpointSlice{}
	for _, s := range existing {
		have[s.Name] = s
	}
	var errs []error
	for _, w := range want {
		errs = append(errs, t.writeSlice(ctx, have[w.Name], w))
		delete(have, w.Name)
	}
	for _, s := range have {
		if s.Labels[discoveryv1.LabelManagedBy] != managedBy {
			continue
		}
		err := t.client.DiscoveryV1().EndpointSlices(namespace).Delete(ctx, s.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("deleting EndpointSlice %s of the API: %w", s.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (t *term) writeSlice(ctx context.Context, is, want *discoveryv1.EndpointSlice) (err error) {
	api := t.client.DiscoveryV1().EndpointSlices(namespace)
	switch {
	case is == nil:
		is, err = api.Create(ctx, want, metav1.CreateOptions{})
	case is.AddressType != want.AddressType: // cannot be changed: made anew at the next look
		if err := api.Delete(ctx, is.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		return fmt.Errorf("EndpointSlice %s has addresses of another family: replacing it", is.Name)
	case equality.Semantic.DeepEqual(is.Endpoints, want.Endpoints) && equality.Semantic.DeepEqual(is.Ports, want.Ports):
		return nil
	default:
		is = is.DeepCopy()
		is.Endpoints, is.Ports = want.Endpoints, want.Ports
		is, err = api.Update(ctx, is, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing EndpointSlice %s of the API: %w", want.Name, err)
	}
	t.loop.Writes().Wrote(key, t.slices, is.ResourceVersion)
	return nil
}

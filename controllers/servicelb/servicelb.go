// Package servicelb keeps the status of Services of type LoadBalancer: their addresses outside of
// the cluster. A provider chooses them, which for bare machines is edge/provider.
//
// Upstream has such a controller in k8s.io/cloud-provider. It was not made for a provider whose
// load balancer is the cluster itself:
//   - it writes a status when a Service changes, and not when a node comes or goes, which here is
//     the change of the addresses;
//   - it serves no Service with a loadBalancerClass;
//   - it cannot be ended: its handlers stay at the informers, and its workers run on behind the
//     end of a term;
//   - a Service that waits for an address is tried again after 5 s to 5 min, and not when an
//     address becomes free;
//   - its finalizer would make the deletion of each Service wait for the leader. There is nothing
//     to clean up here: the transaction that deletes a Service frees its addresses.
//
// Invariants:
//   - A Service that is another load balancer's is not touched.
//   - One worker decides. It sees its own writes before its informer does.
//   - An event is recorded when the reason for a missing address changes, and not at each try.
package servicelb

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/barque/barque/controllers/runtime"
	"github.com/barque/barque/internal/balancers"
)

// Provider chooses the addresses of Services.
type Provider interface {
	// Run follows what the provider needs beside the informers of the cluster, and shows what it
	// has given, until ctx ends. config has the rights of the controller's user. It calls changed
	// when any Service may get another status, at first when it knows enough to begin.
	Run(ctx context.Context, config *rest.Config, changed func()) error
	// Serves reports whether a Service of type LoadBalancer is the provider's.
	Serves(s *corev1.Service) bool
	// Balance returns the status that a Service should have. all are all Services of type
	// LoadBalancer; avoid are addresses that the API server has just refused. known is false before
	// the provider knows enough. refused is the reason for which the Service lacks something that
	// it wants; the status has it, too.
	Balance(
		s *corev1.Service, all []*corev1.Service, avoid map[netip.Addr]string,
	) (status corev1.ServiceStatus, known bool, refused error)
}

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	Provider  Provider
	// ConfigFor makes the configuration of the provider's clients of a term.
	ConfigFor func(lead context.Context) *rest.Config
}

// Controller writes the statuses.
type Controller struct {
	cfg                             Config
	services, nodes, slices, spaces cache.SharedIndexInformer
	list                            corelisters.ServiceLister
}

// indexName is the index of Services of type LoadBalancer, all under one key.
const indexName = "barque.io/load-balancers"

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.Provider == nil {
		return nil, errors.New("controllers/servicelb: no provider")
	}
	core := cfg.Informers.Core().V1()
	c := &Controller{cfg: cfg, services: core.Services().Informer(), nodes: core.Nodes().Informer(),
		spaces: core.Namespaces().Informer(), slices: cfg.Informers.Discovery().V1().EndpointSlices().Informer(),
		list: core.Services().Lister()}
	return c, c.services.AddIndexers(cache.Indexers{indexName: func(obj any) ([]string, error) {
		if s, ok := obj.(*corev1.Service); ok && s.Spec.Type == corev1.ServiceTypeLoadBalancer {
			return []string{""}, nil
		}
		return nil, nil
	}})
}

// avoidFor is how long an address is not chosen that the API server has refused: in this time its
// Service shows in the informer, or repair frees it.
const avoidFor = time.Minute

// term is the controller's work of one term of leadership.
type term struct {
	*Controller
	client   kubernetes.Interface
	recorder record.EventRecorder
	loop     *runtime.Loop

	// The one worker alone uses the fields below.
	written map[runtime.Key]*corev1.Service // that the informer may not show yet
	avoid   map[netip.Addr]time.Time        // until when
}

// Run works for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, "service-controller")
	defer stop()
	t := &term{Controller: c, client: client, recorder: recorder,
		written: map[runtime.Key]*corev1.Service{}, avoid: map[netip.Addr]time.Time{}}
	// One worker: see the package's comment.
	t.loop = runtime.NewLoop("servicelb", 1, c.cfg.Logger, t.reconcile)
	runtime.Watch(t.loop, c.services, t.ofService)
	runtime.Watch(t.loop, c.nodes, t.ofNode)
	runtime.Watch(t.loop, c.spaces, t.ofNamespace)
	runtime.Watch(t.loop, c.slices, t.ofSlice)
	ctx, cancel := context.WithCancel(ctx)
	var provider sync.WaitGroup
	defer provider.Wait()
	defer cancel()
	var failed error
	provider.Go(func() { // ends with ctx, and the loop with it
		defer cancel()
		failed = c.cfg.Provider.Run(ctx, c.cfg.ConfigFor(ctx), func() { t.loop.Add(t.keys(everyone)...) })
	})
	err := t.loop.Run(ctx)
	cancel()
	provider.Wait()
	return errors.Join(err, failed)
}

func everyone(*corev1.Service) bool { return true }

// keys returns the Services of type LoadBalancer that are concerned.
func (t *term) keys(concerned func(*corev1.Service) bool) []runtime.Key {
	var out []runtime.Key
	for _, s := range t.shown() {
		if concerned(s) {
			out = append(out, runtime.KeyOf(s))
		}
	}
	return out
}

// shown are the Services of type LoadBalancer in the informer.
func (t *term) shown() []*corev1.Service {
	objects, err := t.services.GetIndexer().ByIndex(indexName, "")
	if err != nil {
		panic(err) // there is such an index: New made it
	}
	out := make([]*corev1.Service, 0, len(objects))
	for _, obj := range objects {
		if s, ok := obj.(*corev1.Service); ok {
			out = append(out, s)
		}
	}
	return out
}

// waits reports whether a Service lacks something.
func waits(s *corev1.Service) bool {
	c := meta.FindStatusCondition(s.Status.Conditions, balancers.ConditionOf(s))
	return c == nil || c.Status != metav1.ConditionTrue
}

// ofService returns the Service itself, and all that wait if it has freed something.
func (t *term) ofService(old, now *corev1.Service) []runtime.Key {
	concerned := func(s *corev1.Service) bool {
		return s != nil && (s.Spec.Type == corev1.ServiceTypeLoadBalancer || marked(s))
	}
	if !concerned(old) && !concerned(now) {
		return nil
	}
	if old == nil {
		return []runtime.Key{runtime.KeyOf(now)}
	}
	had, has := balancers.HeldBy(old), []balancers.Held(nil)
	if now != nil {
		has = balancers.HeldBy(now)
	}
	keys := []runtime.Key{runtime.KeyOf(old)}
	if len(had) > 0 && !slices.EqualFunc(had, has, balancers.Held.Equal) {
		keys = append(keys, t.keys(waits)...)
	}
	return keys
}

// marked reports whether a Service bears a condition of ours.
func marked(s *corev1.Service) bool {
	return meta.FindStatusCondition(s.Status.Conditions, balancers.PoolCondition) != nil ||
		meta.FindStatusCondition(s.Status.Conditions, balancers.NodesCondition) != nil
}

// ofNode returns all Services if the node's addresses, or whether it takes traffic, have changed.
func (t *term) ofNode(old, now *corev1.Node) []runtime.Key {
	if balancers.SameForClients(old, now) {
		return nil
	}
	return t.keys(everyone)
}

// ofNamespace returns the Services of a namespace whose labels have changed: pools select by them.
func (t *term) ofNamespace(old, now *corev1.Namespace) []runtime.Key {
	if now == nil || old != nil && equality.Semantic.DeepEqual(old.Labels, now.Labels) {
		return nil
	}
	return t.keys(func(s *corev1.Service) bool { return s.Namespace == now.Name })
}

// ofSlice returns the Service of a slice, if its addresses follow its endpoints.
func (t *term) ofSlice(old, now *discoveryv1.EndpointSlice) []runtime.Key {
	if balancers.SameNodes(old, now) {
		return nil
	}
	if now == nil {
		now = old
	}
	s, err := t.list.Services(now.Namespace).Get(now.Labels[discoveryv1.LabelServiceName])
	if err != nil || s.Spec.Type != corev1.ServiceTypeLoadBalancer ||
		s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return nil
	}
	return []runtime.Key{runtime.KeyOf(s)}
}

// seen returns the Services of type LoadBalancer as they are after the writes of this term.
func (t *term) seen() []*corev1.Service {
	all := t.shown()
	for i, s := range all {
		all[i] = t.newest(s)
	}
	return all
}

func (t *term) newest(s *corev1.Service) *corev1.Service {
	key := runtime.KeyOf(s)
	w := t.written[key]
	if w == nil {
		return s
	}
	if w.UID == s.UID && runtime.Older(s.ResourceVersion, w.ResourceVersion) {
		return w
	}
	delete(t.written, key)
	return s
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	s, err := t.list.Services(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		delete(t.written, key)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	s = t.newest(s)
	if s.DeletionTimestamp != nil {
		return 0, nil // it keeps its addresses until it has gone
	}
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || !t.cfg.Provider.Serves(s) {
		return 0, t.leave(ctx, key, s)
	}
	status, known, refused := t.cfg.Provider.Balance(s, t.seen(), t.avoided(time.Now()))
	if !known {
		return 0, nil // Run has all Services looked at when it knows
	}
	if equality.Semantic.DeepEqual(s.Status, status) {
		return 0, nil
	}
	written, err := t.write(ctx, key, s, status)
	if apierrors.IsInvalid(err) {
		return 0, t.taken(s, status, err)
	}
	if err != nil {
		return 0, err
	}
	if refused != nil {
		t.recorder.Eventf(written, corev1.EventTypeWarning, "SyncLoadBalancerFailed",
			"Error syncing load balancer: failed to ensure load balancer: %v", refused)
	} else if !equality.Semantic.DeepEqual(s.Status.LoadBalancer, status.LoadBalancer) {
		t.recorder.Event(written, corev1.EventTypeNormal, "EnsuredLoadBalancer", "Ensured load balancer")
	}
	return 0, nil
}

// leave takes the marks of ours from a Service that is another's now, and nothing else.
func (t *term) leave(ctx context.Context, key runtime.Key, s *corev1.Service) error {
	if !marked(s) {
		return nil
	}
	status := *s.Status.DeepCopy()
	meta.RemoveStatusCondition(&status.Conditions, balancers.PoolCondition)
	meta.RemoveStatusCondition(&status.Conditions, balancers.NodesCondition)
	_, err := t.write(ctx, key, s, status)
	return err
}

func (t *term) write(
	ctx context.Context, key runtime.Key, s *corev1.Service, status corev1.ServiceStatus,
) (*corev1.Service, error) {
	s = s.DeepCopy()
	s.Status = status
	written, err := t.client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, s, metav1.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return s, nil // it is deleted
	case err != nil:
		return nil, err
	}
	t.written[key] = written
	t.loop.Writes().Wrote(key, t.services, written.ResourceVersion)
	return written, nil
}

// taken notes addresses that the API server has refused: they belong to a Service that the informer
// does not show. The next try chooses others, or says why it cannot.
func (t *term) taken(s *corev1.Service, status corev1.ServiceStatus, err error) error {
	had := balancers.HeldBy(s)
	wants := s.DeepCopy()
	wants.Status = status
	for _, held := range balancers.HeldBy(wants) {
		if !slices.ContainsFunc(had, func(h balancers.Held) bool { return h.Address == held.Address }) {
			t.avoid[held.Address] = time.Now().Add(avoidFor)
		}
	}
	return err
}

func (t *term) avoided(now time.Time) map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for a, until := range t.avoid {
		if now.After(until) {
			delete(t.avoid, a)
			continue
		}
		out[a] = "another Service, which has just got it"
	}
	return out
}

// Package resourcequota keeps the sums of ResourceQuotas: it computes the usage of a
// namespace's objects, and gives back that of deleted and finished ones. The API server only adds
// to it when it charges a request.
//
// Kinds whose contents matter are counted by the informers of the process. All others are counted
// by their metadata, and only while a quota asks for their count.
//
// Invariants:
//   - a quota is written when its numbers change, and not otherwise;
//   - a charge by the API server for an object that is not stored yet is not given back: see
//     charges.
package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/runtime"
)

// resync is the pause between counts of a quota without an event, such as for a pod that its node
// never ends.
const resync = 5 * time.Minute

// settling is how long new objects are counted for a new or changed quota. They may have been made
// before it, and shown by their informer later. Or an API server may not have known it yet. All
// other objects have been charged.
const settling = 30 * time.Second

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// MetadataFor makes the metadata client of a term.
	MetadataFor func(lead context.Context) (metadata.Interface, error)
	// Evaluators compute the usage of objects. Requests are charged by the same evaluators.
	Evaluators func(quotav1.ListerForResourceFunc) []quotav1.Evaluator
	// Ignored are resources that are never charged.
	Ignored map[schema.GroupResource]struct{}
	// Serves reports whether the API has a resource; nil: it has all.
	Serves func(schema.GroupVersionResource) bool
	// Workers is how many quotas are worked on at once. Default 5.
	Workers int
}

// Controller reconciles the status of ResourceQuotas.
type Controller struct {
	cfg    Config
	quotas cache.SharedIndexInformer
	list   corelisters.ResourceQuotaLister
	// whole are the informers of whole objects: of kinds with fields in quotas, and of quotas. A
	// new quota counts itself, because the informer that reports it also counts it.
	whole map[schema.GroupVersionResource]informers.GenericInformer
}

var (
	pods         = corev1.SchemeGroupVersion.WithResource("pods")
	services     = corev1.SchemeGroupVersion.WithResource("services")
	claims       = corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	quotas       = corev1.SchemeGroupVersion.WithResource("resourcequotas")
	deviceClaims = resourcev1.SchemeGroupVersion.WithResource("resourceclaims")
)

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.MetadataFor == nil || cfg.Evaluators == nil {
		return nil, errors.New("controllers/resourcequota: MetadataFor and Evaluators are required")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Workers <= 0 {
		cfg.Workers = 5
	}
	core := cfg.Informers.Core().V1()
	c := &Controller{cfg: cfg, quotas: core.ResourceQuotas().Informer(), list: core.ResourceQuotas().Lister(),
		whole: map[schema.GroupVersionResource]informers.GenericInformer{}}
	looked := []schema.GroupVersionResource{pods, services, claims, quotas}
	if cfg.Serves == nil || cfg.Serves(deviceClaims) {
		looked = append(looked, deviceClaims)
	}
	for _, gvr := range looked {
		informer, err := cfg.Informers.ForResource(gvr)
		if err != nil {
			return nil, fmt.Errorf("controllers/resourcequota: %w", err)
		}
		informer.Informer()
		c.whole[gvr] = informer
	}
	return c, nil
}

// Run reconciles for one term of leadership. The keys are quotas.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	meta, err := c.cfg.MetadataFor(ctx)
	if err != nil {
		return fmt.Errorf("making a metadata client: %w", err)
	}
	t := &term{Controller: c, client: client, charges: newCharges(time.Now())}
	t.counts = newCounts(ctx, meta, client.Discovery().ServerPreferredNamespacedResources,
		func(gr schema.GroupResource, namespace string, added bool) {
			keys := t.countedIn(namespace, gr)
			if added {
				keys = t.changes.recent(keys, time.Now())
			}
			t.loop.Add(keys...)
		})
	defer t.counts.stop()
	_, served := c.whole[deviceClaims]
	t.evaluators = slices.DeleteFunc(c.cfg.Evaluators(t.lister), func(e quotav1.Evaluator) bool {
		return e.GroupResource() == deviceClaims.GroupResource() && !served // there are none to count
	})
	t.loop = runtime.NewLoop("resourcequota", c.cfg.Workers, c.cfg.Logger, t.reconcile)
	runtime.Watch(t.loop, c.quotas, t.changed)
	runtime.Watch(t.loop, c.whole[pods].Informer(),
		func(old, now *corev1.Pod) []runtime.Key { return follow(t, pods, old, now) })
	runtime.Watch(t.loop, c.whole[services].Informer(),
		func(old, now *corev1.Service) []runtime.Key { return follow(t, services, old, now) })
	runtime.Watch(t.loop, c.whole[claims].Informer(),
		func(old, now *corev1.PersistentVolumeClaim) []runtime.Key { return follow(t, claims, old, now) })
	if served {
		runtime.Watch(t.loop, c.whole[deviceClaims].Informer(),
			func(old, now *resourcev1.ResourceClaim) []runtime.Key { return follow(t, deviceClaims, old, now) })
	}
	return t.loop.Run(ctx)
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client     kubernetes.Interface
	loop       *runtime.Loop
	evaluators []quotav1.Evaluator
	counts     *counts
	charges    *charges
	changes    changes
}

// changes knows when quotas have come or changed.
type changes struct {
	mu sync.Mutex
	at map[runtime.Key]time.Time
}

func (c *changes) note(key runtime.Key, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at == nil {
		c.at = map[runtime.Key]time.Time{}
	}
	c.at[key] = now
}

// recent returns the keys that are settling, and forgets others.
func (c *changes) recent(keys []runtime.Key, now time.Time) []runtime.Key {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(keys, func(key runtime.Key) bool {
		settled := now.Sub(c.at[key]) >= settling
		if settled {
			delete(c.at, key)
		}
		return settled
	})
}

func (c *changes) forget(key runtime.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.at, key)
}

// changed queues a quota that is new or changed, and records its charge.
func (t *term) changed(old, now *corev1.ResourceQuota) []runtime.Key {
	switch {
	case now == nil:
		t.charges.forget(runtime.KeyOf(old))
		t.changes.forget(runtime.KeyOf(old))
		return t.countedIn(old.Namespace, quotas.GroupResource())
	case old != nil:
		t.charges.saw(runtime.KeyOf(now), old.Status.Used, now.Status.Used, time.Now())
		if equality.Semantic.DeepEqual(old.Spec, now.Spec) &&
			equality.Semantic.DeepEqual(now.Spec.Hard, now.Status.Hard) {
			return nil
		}
	}
	t.changes.note(runtime.KeyOf(now), time.Now())
	return []runtime.Key{runtime.KeyOf(now)}
}

// follow queues the quotas that a changed or deleted object may return usage to, and those that a
// new one may not have been charged to.
func follow[T any, P interface {
	*T
	kruntime.Object
	metav1.Object
}](t *term, gvr schema.GroupVersionResource, old, now P) []runtime.Key {
	if old == nil {
		return t.changes.recent(t.countedIn(now.GetNamespace(), gvr.GroupResource()), time.Now())
	}
	keys := t.countedIn(old.GetNamespace(), gvr.GroupResource())
	evaluator := t.evaluatorOf(gvr.GroupResource())
	if len(keys) == 0 || evaluator == nil || now != nil && t.sameUse(evaluator, old, now) {
		return nil
	}
	return keys
}

// sameUse reports whether a change requires no new count of the namespace's quotas.
func (t *term) sameUse(evaluator quotav1.Evaluator, old, now kruntime.Object) bool {
	was, err := evaluator.Usage(old)
	is, err2 := evaluator.Usage(now)
	if err != nil || err2 != nil || !quotav1.Equals(was, is) {
		return false
	}
	for _, scope := range []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeTerminating,
		corev1.ResourceQuotaScopeBestEffort} {
		exists := []corev1.ScopedResourceSelectorRequirement{{ScopeName: scope, Operator: corev1.ScopeSelectorOpExists}}
		was, err := evaluator.MatchingScopes(old, exists)
		is, err2 := evaluator.MatchingScopes(now, exists)
		if err != nil || err2 != nil || len(was) != len(is) {
			return false
		}
	}
	before, ok := old.(*corev1.PersistentVolumeClaim)
	after, ok2 := now.(*corev1.PersistentVolumeClaim)
	return !ok || !ok2 ||
		equality.Semantic.DeepEqual(before.Spec.VolumeAttributesClassName, after.Spec.VolumeAttributesClassName) &&
			equality.Semantic.DeepEqual(before.Status.CurrentVolumeAttributesClassName,
				after.Status.CurrentVolumeAttributesClassName) &&
			equality.Semantic.DeepEqual(before.Status.ModifyVolumeStatus, after.Status.ModifyVolumeStatus)
}

func (t *term) evaluatorOf(gr schema.GroupResource) quotav1.Evaluator {
	for _, e := range t.evaluators {
		if e.GroupResource() == gr {
			return e
		}
	}
	return nil
}

// countedIn are the quotas of a namespace that count objects of a resource.
func (t *term) countedIn(namespace string, gr schema.GroupResource) []runtime.Key {
	quotas, err := t.list.ResourceQuotas(namespace).List(labels.Everything())
	if err != nil {
		return nil
	}
	evaluator := t.evaluatorOf(gr)
	if evaluator == nil {
		evaluator = generic.NewObjectCountEvaluator(gr, nil, "")
	}
	var keys []runtime.Key
	for _, q := range quotas {
		if len(evaluator.MatchingResources(quotav1.ResourceNames(q.Spec.Hard))) > 0 {
			keys = append(keys, runtime.KeyOf(q))
		}
	}
	return keys
}

// lister finds the objects of a resource.
func (t *term) lister(gvr schema.GroupVersionResource) (cache.GenericLister, error) {
	if whole, ok := t.whole[gvr]; ok {
		if !whole.Informer().HasSynced() {
			return nil, fmt.Errorf("%s are not listed yet", gvr.Resource)
		}
		return whole.Lister(), nil
	}
	return t.counts.lister(gvr)
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	q, err := t.list.ResourceQuotas(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil || q.DeletionTimestamp != nil {
		return 0, err
	}
	registry, unknown := t.registryFor(q)
	// A resource that cannot be counted keeps its number, and is retried after the error.
	counted, failed := quotav1.CalculateUsage(q.Namespace, q.Spec.Scopes, q.Spec.Hard, registry, q.Spec.ScopeSelector)
	status, later := decide(q, counted, t.charges.recent(key, time.Now()))
	if !equality.Semantic.DeepEqual(status, q.Status) {
		next := q.DeepCopy()
		next.Status = status
		next, err = t.client.CoreV1().ResourceQuotas(q.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return 0, nil
		case err != nil:
			return 0, fmt.Errorf("writing the status of quota %s: %w", key, err)
		}
		t.loop.Writes().Wrote(key, t.quotas, next.ResourceVersion)
	}
	if err := errors.Join(failed, unknown); err != nil {
		return 0, fmt.Errorf("counting for quota %s: %w", key, err)
	}
	if later {
		return inFlight, nil
	}
	return resync, nil
}

// registryFor has the evaluators that a quota needs. Those of other counts are made on demand; a
// resource that the API does not serve is not counted.
func (t *term) registryFor(q *corev1.ResourceQuota) (quotav1.Registry, error) {
	hard := quotav1.ResourceNames(q.Spec.Hard)
	registry := generic.NewRegistry(nil)
	counted := map[corev1.ResourceName]bool{}
	for _, e := range t.evaluators {
		if names := e.MatchingResources(hard); len(names) > 0 {
			registry.Add(e)
			for _, name := range names {
				counted[name] = true
			}
		}
	}
	var errs []error
	for _, name := range hard {
		resource, ok := strings.CutPrefix(string(name), "count/")
		if !ok || counted[name] {
			continue
		}
		gr := schema.ParseGroupResource(resource)
		if _, ignored := t.cfg.Ignored[gr]; ignored {
			continue
		}
		gvr, found, err := t.counts.find(gr)
		if err != nil {
			errs = append(errs, err)
		}
		if found {
			registry.Add(generic.NewObjectCountEvaluator(gr, generic.ListResourceUsingListerFunc(t.lister, gvr), ""))
		}
	}
	return registry, errors.Join(errs...)
}

// decide returns the status that a quota should have. The count is right except for recent charges:
// later means that the quota must be reconciled again for them.
func decide(
	q *corev1.ResourceQuota, counted corev1.ResourceList, recent recent,
) (status corev1.ResourceQuotaStatus, later bool) {
	status.Hard = quotav1.Add(corev1.ResourceList{}, q.Spec.Hard)
	status.Used = corev1.ResourceList{}
	for name := range status.Hard {
		is, known := q.Status.Used[name]
		want, ok := counted[name]
		switch {
		case !ok && known:
			want = is
		case !ok:
			continue
		case known && want.Cmp(is) < 0:
			least := recent.above(name, want)
			if recent.unknown || least.Cmp(is) > 0 {
				least = is
			}
			later = later || least.Cmp(want) > 0
			want = least
		}
		status.Used[name] = want
	}
	return status, later
}

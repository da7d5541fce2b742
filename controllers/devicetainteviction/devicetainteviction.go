package devicetainteviction

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/barque/barque/controllers/runtime"
)

const (
	fieldManager = "device-taint-eviction-controller"
	// statusPeriod is how long a rule's condition stays as it is, at least.
	statusPeriod = 10 * time.Second

	byPool = "barque/devicepool"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// Workers is how many pods are reconciled at once. Default 8.
	Workers int
}

// Controller evicts pods from tainted devices.
type Controller struct {
	cfg                         Config
	pods, claims, slices, rules cache.SharedIndexInformer
	listPods                    corelisters.PodLister
	listClaims                  resourcelisters.ResourceClaimLister
	listRules                   resourcelisters.DeviceTaintRuleLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.Workers <= 0 {
		cfg.Workers = 8
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	resource, core := cfg.Informers.Resource().V1(), cfg.Informers.Core().V1()
	c := &Controller{
		cfg:  cfg,
		pods: core.Pods().Informer(), listPods: core.Pods().Lister(),
		claims: resource.ResourceClaims().Informer(), listClaims: resource.ResourceClaims().Lister(),
		rules: resource.DeviceTaintRules().Informer(), listRules: resource.DeviceTaintRules().Lister(),
		slices: resource.ResourceSlices().Informer(),
	}
	return c, errors.Join(
		runtime.EnsureIndex(c.slices, byPool, func(obj any) ([]string, error) {
			if s, ok := obj.(*resourcev1.ResourceSlice); ok {
				return []string{poolKey(s.Spec.Driver, s.Spec.Pool.Name)}, nil
			}
			return nil, nil
		}),
		runtime.EnsureIndex(c.claims, byPool, func(obj any) ([]string, error) {
			keys := sets.New[string]()
			if claim, ok := obj.(*resourcev1.ResourceClaim); ok && claim.Status.Allocation != nil {
				for _, r := range claim.Status.Allocation.Devices.Results {
					keys.Insert(poolKey(r.Driver, r.Pool))
				}
			}
			return sets.List(keys), nil
		}),
	)
}

// A driver's name has no slash.
func poolKey(driver, pool string) string { return driver + "/" + pool }

// Run reconciles for one term of leadership. Pods and rules have a queue each.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, fieldManager)
	defer stop()
	t := &term{Controller: c, client: client, recorder: recorder, waiting: sets.New[types.UID](),
		evicted: map[types.UID]int64{}}
	t.podLoop = runtime.NewLoop("devicetainteviction", c.cfg.Workers, c.cfg.Logger, t.reconcilePod)
	t.ruleLoop = runtime.NewLoop("devicetaintrule", 1, c.cfg.Logger, t.reconcileRule)
	// Rules come first: their first condition is written before the first eviction.
	runtime.Watch(t.ruleLoop, c.rules, func(old, now *resourcev1.DeviceTaintRule) []runtime.Key {
		switch {
		case now == nil:
			t.forget(old.UID)
			return nil
		case old != nil && old.UID == now.UID && old.Generation == now.Generation:
			return nil
		}
		return []runtime.Key{runtime.KeyOf(now)}
	})
	runtime.Watch(t.podLoop, c.rules, func(old, now *resourcev1.DeviceTaintRule) []runtime.Key {
		if old != nil && now != nil && old.UID == now.UID && old.Generation == now.Generation {
			return nil
		}
		return t.usersMatching(old, now)
	})
	runtime.Watch(t.podLoop, c.slices, func(old, now *resourcev1.ResourceSlice) []runtime.Key {
		var keys []runtime.Key
		for _, s := range []*resourcev1.ResourceSlice{old, now} {
			if s != nil {
				keys = append(keys, t.usersOf(poolKey(s.Spec.Driver, s.Spec.Pool.Name))...)
			}
		}
		return keys
	})
	runtime.Watch(t.podLoop, c.claims, func(old, now *resourcev1.ResourceClaim) []runtime.Key {
		return append(users(old), users(now)...)
	})
	runtime.Watch(t.podLoop, c.pods, func(_, now *corev1.Pod) []runtime.Key {
		if now == nil || len(now.Spec.ResourceClaims) == 0 || now.Spec.NodeName == "" {
			return nil
		}
		return []runtime.Key{runtime.KeyOf(now)}
	})

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var other error
	var wg sync.WaitGroup
	wg.Go(func() { other = t.ruleLoop.Run(ctx); cancel() })
	err := t.podLoop.Run(ctx)
	cancel()
	wg.Wait()
	return errors.Join(err, other)
}

// users returns the pods that use a claim.
func users(claim *resourcev1.ResourceClaim) (keys []runtime.Key) {
	if claim == nil {
		return nil
	}
	for _, u := range claim.Status.ReservedFor {
		if u.APIGroup == "" && u.Resource == "pods" {
			keys = append(keys, runtime.Key{Namespace: claim.Namespace, Name: u.Name})
		}
	}
	return keys
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client            kubernetes.Interface
	recorder          record.EventRecorder
	podLoop, ruleLoop *runtime.Loop

	mu sync.Mutex
	// waiting are pods whose eviction has been decided, and has its time.
	waiting sets.Set[types.UID]
	evicted map[types.UID]int64 // by rule
}

func (t *term) forget(rule types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.evicted, rule)
}

// usersOf returns the pods that use devices of a pool.
func (t *term) usersOf(pool string) (keys []runtime.Key) {
	found, err := runtime.ByIndex[resourcev1.ResourceClaim](t.claims, byPool, pool)
	if err != nil {
		t.cfg.Logger.Error("finding the users of a device pool", "pool", pool, "err", err)
	}
	for _, claim := range found {
		keys = append(keys, users(claim)...)
	}
	return keys
}

// usersMatching returns the pods that use devices which one of the rules is about.
func (t *term) usersMatching(rules ...*resourcev1.DeviceTaintRule) (keys []runtime.Key) {
	all, err := t.listClaims.List(labels.Everything())
	if err != nil {
		t.cfg.Logger.Error("listing claims", "err", err)
	}
	for _, claim := range all {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			for _, rule := range rules {
				if rule != nil && matches(rule, r.Driver, r.Pool, r.Device) {
					keys = append(keys, users(claim)...)
				}
			}
		}
	}
	return keys
}

// view is the cluster as the informers show it.
func (t *term) view() (*cluster, error) {
	rules, err := t.listRules.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	return &cluster{
		claim: func(namespace, name string) *resourcev1.ResourceClaim {
			claim, _ := t.listClaims.ResourceClaims(namespace).Get(name) // the error can only be NotFound
			return claim
		},
		slices: func(driver, pool string) []*resourcev1.ResourceSlice {
			// New has made the index
			found, _ := runtime.ByIndex[resourcev1.ResourceSlice](t.slices, byPool, poolKey(driver, pool))
			return found
		},
		rules: rules,
	}, nil
}

func (t *term) reconcilePod(ctx context.Context, key runtime.Key) (time.Duration, error) {
	pod, err := t.listPods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	view, err := t.view()
	if err != nil {
		return 0, err
	}
	e := view.evictionOf(pod)
	if e == nil {
		t.mu.Lock()
		waited := t.waiting.Has(pod.UID)
		t.waiting.Delete(pod.UID)
		t.mu.Unlock()
		if waited && pod.DeletionTimestamp == nil {
			t.recorder.Event(pod, corev1.EventTypeNormal, "DeviceTaintManagerEviction", "Cancelling deletion")
		}
		return 0, nil
	}
	t.tellRules(view, e)
	if wait := time.Until(e.at); wait > 0 {
		t.mu.Lock()
		t.waiting.Insert(pod.UID)
		t.mu.Unlock()
		return wait, nil
	}
	if err := t.evict(ctx, pod); err != nil {
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return 0, nil // it is gone, or another one has its name
		}
		return 0, fmt.Errorf("evict pod %s from a tainted device: %w", key, err)
	}
	t.podLoop.Writes().Deleted(key, t.pods, key, pod.UID)
	t.mu.Lock()
	t.waiting.Delete(pod.UID)
	for _, rule := range e.rules {
		t.evicted[rule]++
	}
	t.mu.Unlock()
	t.tellRules(view, e)
	return 0, nil
}

// tellRules has the conditions of the rules looked at.
func (t *term) tellRules(view *cluster, e *eviction) {
	for _, rule := range view.rules {
		for _, uid := range e.rules {
			if rule.UID == uid {
				t.ruleLoop.Add(runtime.KeyOf(rule))
			}
		}
	}
}

func (t *term) evict(ctx context.Context, pod *corev1.Pod) error {
	t.recorder.Event(pod, corev1.EventTypeNormal, "DeviceTaintManagerEviction", "Marking for deletion")
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
			Reason:  "DeletionByDeviceTaintManager",
			Message: "Device Taint manager: deleting due to NoExecute taint",
		}}},
	})
	if err != nil {
		return fmt.Errorf("encode the condition: %w", err)
	}
	pods := t.client.CoreV1().Pods(pod.Namespace)
	if _, err := pods.Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager}, "status"); err != nil {
		return err
	}
	return pods.Delete(ctx, pod.Name, *metav1.NewPreconditionDeleteOptions(string(pod.UID)))
}

// reconcileRule writes a rule's effect into its status.
func (t *term) reconcileRule(ctx context.Context, key runtime.Key) (time.Duration, error) {
	rule, err := t.listRules.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	was := apimeta.FindStatusCondition(rule.Status.Conditions, resourcev1.DeviceTaintConditionEvictionInProgress)
	if was != nil && was.ObservedGeneration == rule.Generation {
		if wait := time.Until(was.LastTransitionTime.Add(statusPeriod)); wait > 0 {
			return wait, nil // counting is expensive, and people do not read faster
		}
	}
	n, err := t.count(rule)
	if err != nil {
		return 0, err
	}
	is := conditionOf(rule, n)
	if was != nil {
		is.LastTransitionTime = was.LastTransitionTime
		if is == *was && is.Status == metav1.ConditionTrue {
			return statusPeriod, nil // pods that go are no event
		}
		if is == *was {
			return 0, nil
		}
	}
	is.LastTransitionTime = metav1.Now()
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": rule.UID},
		"status":   map[string]any{"conditions": []metav1.Condition{is}},
	})
	if err != nil {
		return 0, fmt.Errorf("encode the condition: %w", err)
	}
	written, err := t.client.ResourceV1().DeviceTaintRules().Patch(ctx, rule.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return 0, nil // another one has its name
	}
	if err != nil {
		return 0, fmt.Errorf("add condition to DeviceTaintRule status: %w", err)
	}
	t.ruleLoop.Writes().Wrote(key, t.rules, written.ResourceVersion)
	if is.Status == metav1.ConditionTrue {
		return statusPeriod, nil // until it is over
	}
	return 0, nil
}

func (t *term) count(rule *resourcev1.DeviceTaintRule) (n counts, _ error) {
	view, err := t.view()
	if err != nil {
		return n, err
	}
	switch rule.Spec.Taint.Effect {
	case resourcev1.DeviceTaintEffectNoExecute, resourcev1.DeviceTaintEffectNone:
		pods, err := t.listPods.List(labels.Everything())
		if err != nil {
			return n, err
		}
		if rule.Spec.Taint.Effect == resourcev1.DeviceTaintEffectNoExecute {
			n = view.pending(rule, pods)
			break
		}
		claims, err := t.listClaims.List(labels.Everything())
		if err != nil {
			return n, err
		}
		var all []*resourcev1.ResourceSlice
		for _, obj := range t.slices.GetStore().List() {
			if s, ok := obj.(*resourcev1.ResourceSlice); ok {
				all = append(all, s)
			}
		}
		n = view.simulated(rule, pods, all, claims)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n.evicted = t.evicted[rule.UID]
	return n, nil
}

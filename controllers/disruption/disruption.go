// Package disruption computes the status of PodDisruptionBudgets, which the eviction subresource
// uses up. It removes the conditions of disruptions that did not happen.
//
// The eviction subresource writes the same status: it lowers the allowance and records the pod. The
// next reconcile decides a conflict of the two. A budget that cannot be computed allows nothing.
package disruption

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/controllers/pods"
	"github.com/barque/barque/controllers/runtime"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// Serves reports whether the API has a resource; nil: it has all. Only served ones get
	// informers.
	Serves func(schema.GroupVersionResource) bool
	// Workers is how many budgets are worked on at once. Default 5.
	Workers int
}

// Controller reconciles PodDisruptionBudgets.
type Controller struct {
	cfg         Config
	budgets     cache.SharedIndexInformer
	pods        cache.SharedIndexInformer
	listBudgets policylisters.PodDisruptionBudgetLister
	listPods    corelisters.PodLister
	sets        appslisters.ReplicaSetLister
	deployments appslisters.DeploymentLister
	finders     map[schema.GroupKind]finder
	// sizes watch the owners whose sizes the finders read.
	sizes []func(*term)
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.Workers <= 0 {
		cfg.Workers = 5
	}
	core, apps, policy := cfg.Informers.Core().V1(), cfg.Informers.Apps().V1(), cfg.Informers.Policy().V1()
	c := &Controller{
		cfg:         cfg,
		budgets:     policy.PodDisruptionBudgets().Informer(),
		pods:        core.Pods().Informer(),
		listBudgets: policy.PodDisruptionBudgets().Lister(),
		listPods:    core.Pods().Lister(),
		sets:        apps.ReplicaSets().Lister(),
		deployments: apps.Deployments().Lister(),
	}
	c.finders = map[schema.GroupKind]finder{{Group: "apps", Kind: "ReplicaSet"}: c.replicaSet}
	c.sizes = []func(*term){
		sizeOf(apps.Deployments().Informer(),
			func(d *appsv1.Deployment) (*int32, *corev1.PodTemplateSpec) { return d.Spec.Replicas, &d.Spec.Template }),
		sizeOf(apps.ReplicaSets().Informer(),
			func(s *appsv1.ReplicaSet) (*int32, *corev1.PodTemplateSpec) { return s.Spec.Replicas, &s.Spec.Template }),
	}
	serves := func(group, resource string) bool {
		return cfg.Serves == nil ||
			cfg.Serves(schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource})
	}
	if serves("apps", "statefulsets") {
		list := apps.StatefulSets().Lister()
		c.finders[schema.GroupKind{Group: "apps", Kind: "StatefulSet"}] = func(
			namespace string, ref *metav1.OwnerReference,
		) *owner {
			set, err := list.StatefulSets(namespace).Get(ref.Name)
			return ownerFrom(set, err, func() *int32 { return set.Spec.Replicas }, ref)
		}
		c.sizes = append(c.sizes,
			sizeOf(apps.StatefulSets().Informer(), func(s *appsv1.StatefulSet) (*int32, *corev1.PodTemplateSpec) {
				return s.Spec.Replicas, &s.Spec.Template
			}))
	}
	if serves("", "replicationcontrollers") {
		list := core.ReplicationControllers().Lister()
		c.finders[schema.GroupKind{Kind: "ReplicationController"}] = func(
			namespace string, ref *metav1.OwnerReference,
		) *owner {
			rc, err := list.ReplicationControllers(namespace).Get(ref.Name)
			return ownerFrom(rc, err, func() *int32 { return rc.Spec.Replicas }, ref)
		}
		c.sizes = append(c.sizes,
			sizeOf(core.ReplicationControllers().Informer(),
				func(rc *corev1.ReplicationController) (*int32, *corev1.PodTemplateSpec) {
					return rc.Spec.Replicas, rc.Spec.Template
				}))
	}
	return c, nil
}

// Run reconciles for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, "controllermanager")
	defer stop()
	t := &term{Controller: c, client: client, recorder: recorder,
		scales: &scales{discovery: client.Discovery(), known: map[schema.GroupVersionKind]string{}}}
	t.loop = runtime.NewLoop("disruption", c.cfg.Workers, c.cfg.Logger, t.reconcile)
	runtime.Watch(t.loop, c.budgets, runtime.Itself[policyv1.PodDisruptionBudget])
	runtime.Watch(t.loop, c.pods, t.budgetsOf)
	for _, watch := range c.sizes {
		watch(t)
	}
	conditions := runtime.NewLoop("disruption-conditions", 1, c.cfg.Logger, t.takeBack)
	runtime.Watch(conditions, c.pods, func(_, now *corev1.Pod) []runtime.Key {
		if now == nil {
			return nil
		}
		if found, _ := stale(now, time.Now()); !found {
			return nil
		}
		return []runtime.Key{runtime.KeyOf(now)}
	})

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var other error
	var wg sync.WaitGroup
	wg.Go(func() { other = conditions.Run(ctx); cancel() })
	err := t.loop.Run(ctx)
	cancel()
	wg.Wait()
	return errors.Join(err, other)
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client   kubernetes.Interface
	recorder record.EventRecorder
	loop     *runtime.Loop
	scales   *scales
}

// budgetsOf returns the budgets that a change of a pod concerns.
func (t *term) budgetsOf(old, now *corev1.Pod) []runtime.Key {
	var keys []runtime.Key
	for _, pod := range []*corev1.Pod{old, now} {
		if pod == nil {
			continue
		}
		budgets, err := t.listBudgets.GetPodPodDisruptionBudgets(pod)
		if err != nil {
			continue // it has none
		}
		for _, b := range budgets {
			keys = append(keys, runtime.KeyOf(b))
		}
		if len(budgets) > 1 && old == nil {
			t.recorder.Eventf(pod, corev1.EventTypeWarning, "MultiplePodDisruptionBudgets",
				"Pod %q/%q matches multiple PodDisruptionBudgets: it cannot be evicted.", pod.Namespace, pod.Name)
		}
	}
	return keys
}

// sizeOf makes the watch that wakes the budgets of a controller's pods when it wants another number
// of them. The pods may come late, or never, as under a quota.
func sizeOf[T any, P runtime.Object[T]](
	informer cache.SharedIndexInformer, size func(P) (*int32, *corev1.PodTemplateSpec),
) func(*term) {
	return func(t *term) {
		runtime.Watch(t.loop, informer, func(old, now *T) []runtime.Key {
			if old == nil || now == nil {
				return nil // its pods come and go, too
			}
			was, _ := size(old)
			is, template := size(now)
			if template == nil || ptr.Equal(was, is) {
				return nil
			}
			budgets, err := t.listBudgets.PodDisruptionBudgets(P(now).GetNamespace()).List(labels.Everything())
			if err != nil {
				return nil
			}
			var keys []runtime.Key
			for _, b := range budgets {
				selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
				if err == nil && needsScale(b) && selector.Matches(labels.Set(template.Labels)) {
					keys = append(keys, runtime.KeyOf(b))
				}
			}
			return keys
		})
	}
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	budget, err := t.listBudgets.PodDisruptionBudgets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	p, problem := t.plan(ctx, budget)
	if problem != nil {
		status := failed(budget, problem, time.Now())
		if !sameStatus(budget.Status, status) {
			t.recorder.Eventf(budget, corev1.EventTypeWarning, "CalculateExpectedPodCountFailed",
				"Failed to calculate the number of expected pods: %v", problem)
		}
		return 0, errors.Join(problem, t.writeStatus(ctx, key, budget, status))
	}
	for _, pod := range p.kept {
		t.recorder.Eventf(pod, corev1.EventTypeWarning, "NotDeleted",
			"Pod was expected by PDB %s/%s to be deleted but it wasn't", budget.Namespace, budget.Name)
	}
	return p.again, t.writeStatus(ctx, key, budget, p.status)
}

// plan gathers the input of decide.
func (t *term) plan(ctx context.Context, budget *policyv1.PodDisruptionBudget) (plan, error) {
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		return plan{}, fmt.Errorf("selector: %w", err)
	}
	mine, err := t.listPods.Pods(budget.Namespace).List(selector)
	if err != nil {
		return plan{}, err
	}
	var scale int32
	var unmanaged []string
	if needsScale(budget) {
		if scale, unmanaged, err = t.expected(ctx, mine); err != nil {
			return plan{}, err
		}
	}
	p, err := decide(budget, mine, scale, time.Now())
	if err != nil || sameStatus(budget.Status, p.status) {
		return p, err
	}
	// An event is written when the status changes, not at each reconcile.
	if len(mine) == 0 {
		t.recorder.Event(budget, corev1.EventTypeNormal, "NoPods", "No matching pods found")
	}
	if len(unmanaged) > 0 {
		t.recorder.Eventf(budget, corev1.EventTypeWarning, "UnmanagedPods",
			"Pods selected by this PodDisruptionBudget (selector: %v) were found "+
				"to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. "+
				"To account for these pods please set \".spec.minAvailable\" "+
				"field of the PDB to an integer value.", budget.Spec.Selector)
	}
	return p, nil
}

func (t *term) writeStatus(
	ctx context.Context, key runtime.Key, budget *policyv1.PodDisruptionBudget,
	status policyv1.PodDisruptionBudgetStatus,
) error {
	if sameStatus(budget.Status, status) || ctx.Err() != nil {
		return nil
	}
	now := budget.DeepCopy()
	now.Status = status
	now, err := t.client.PolicyV1().PodDisruptionBudgets(budget.Namespace).UpdateStatus(ctx, now,
		metav1.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("writing the status of PodDisruptionBudget %s: %w", key, err)
	}
	t.loop.Writes().Wrote(key, t.budgets, now.ResourceVersion)
	return nil
}

// takeBack sets the DisruptionTarget condition of a pod to False when its deletion has not come.
func (t *term) takeBack(ctx context.Context, key runtime.Key) (time.Duration, error) {
	pod, err := t.listPods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	found, after := stale(pod, time.Now())
	if !found || after > 0 {
		return after, nil
	}
	pod = pod.DeepCopy()
	*pods.Condition(pod, corev1.DisruptionTarget) = corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now(),
		ObservedGeneration: pod.Generation,
	}
	// The deletion may be on its way: then the write is a conflict.
	_, err = t.client.CoreV1().Pods(key.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("taking back the DisruptionTarget condition of pod %s: %w", key, err)
	}
	return 0, nil
}

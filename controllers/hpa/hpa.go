package hpa

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	autoscalinglisters "k8s.io/client-go/listers/autoscaling/v2"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/retry"

	"github.com/barque/barque/controllers/runtime"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	// ConfigFor makes the client configuration of a term: every request by it carries
	// runtime.TermFrom(lead), and ends with lead.
	ConfigFor func(lead context.Context) *rest.Config
	Settings  Settings
	Logger    *slog.Logger
	// Workers is how many autoscalers are worked on at once. Default 5.
	Workers int
}

// scales reads and writes the scale subresources of any kind.
type scales interface {
	// get returns the scale of ref's object, and the resource for its update.
	get(
		ctx context.Context, namespace string, ref autoscalingv2.CrossVersionObjectReference,
	) (*autoscalingv1.Scale, schema.GroupResource, error)
	put(ctx context.Context, of schema.GroupResource, scale *autoscalingv1.Scale) error
}

// metricsReader reads one metric of a spec.
type metricsReader interface {
	read(ctx context.Context, namespace string, selector labels.Selector, m *autoscalingv2.MetricSpec) reading
}

// Controller reconciles HorizontalPodAutoscalers.
type Controller struct {
	cfg         Config
	autoscalers cache.SharedIndexInformer
	list        autoscalinglisters.HorizontalPodAutoscalerLister
	pods        corelisters.PodLister
	sources     func(lead context.Context) (scales, metricsReader, error)
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.Workers <= 0 {
		cfg.Workers = 5
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Settings = cfg.Settings.withDefaults()
	autoscalers := cfg.Informers.Autoscaling().V2().HorizontalPodAutoscalers()
	c := &Controller{cfg: cfg, autoscalers: autoscalers.Informer(), list: autoscalers.Lister(),
		pods: cfg.Informers.Core().V1().Pods().Lister()}
	c.sources = func(lead context.Context) (scales, metricsReader, error) {
		if cfg.ConfigFor == nil {
			return nil, nil, errors.New("hpa: ConfigFor is required")
		}
		return newSources(cfg.ConfigFor(lead))
	}
	return c, nil
}

// Run reconciles for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, "horizontal-pod-autoscaler")
	defer stop()
	scales, metrics, err := c.sources(ctx)
	if err != nil {
		return err
	}
	t := &term{Controller: c, client: client, recorder: recorder, scales: scales, metrics: metrics,
		memories: map[types.UID]memory{}, selectors: map[runtime.Key]labels.Selector{}}
	t.loop = runtime.NewLoop("hpa", c.cfg.Workers, c.cfg.Logger, t.reconcile)
	runtime.Watch(t.loop, c.autoscalers, func(old, now *autoscalingv2.HorizontalPodAutoscaler) []runtime.Key {
		switch {
		case now == nil:
			t.forget(old)
			return nil
		case old != nil && old.UID != now.UID: // deleted, and made again
			t.forget(old)
		case old != nil && old.Generation == now.Generation:
			return nil // its status was written: it is looked at in time
		}
		return []runtime.Key{runtime.KeyOf(now)}
	})
	return t.loop.Run(ctx)
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client   kubernetes.Interface
	recorder record.EventRecorder
	loop     *runtime.Loop
	scales   scales
	metrics  metricsReader

	mu        sync.Mutex
	memories  map[types.UID]memory
	selectors map[runtime.Key]labels.Selector // of the targets
}

func (t *term) forget(hpa *autoscalingv2.HorizontalPodAutoscaler) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.memories, hpa.UID)
	delete(t.selectors, runtime.KeyOf(hpa))
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	hpa, err := t.list.HorizontalPodAutoscalers(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	o, of := t.observe(ctx, hpa)
	t.mu.Lock()
	m := t.memories[hpa.UID]
	t.mu.Unlock()
	p := t.cfg.Settings.decide(o, m, time.Now())
	if p.rescale {
		err := t.rescale(ctx, hpa, of, o.target, p.replicas)
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		p = p.outcome(o, err, time.Now())
	}
	if p.problem != nil {
		t.cfg.Logger.Debug("an autoscaler cannot do all that it should", "autoscaler", key, "reason", p.problem)
	}
	t.mu.Lock()
	t.memories[hpa.UID] = p.memory
	t.mu.Unlock()
	if p.rescale || !sameConditions(hpa.Status.Conditions, p.status.Conditions) {
		for _, e := range p.events {
			t.recorder.Event(hpa, e.kind, e.reason, e.message)
		}
	}
	if err := t.writeStatus(ctx, key, hpa, p.status); err != nil {
		return 0, err
	}
	if _, err := t.list.HorizontalPodAutoscalers(key.Namespace).Get(key.Name); apierrors.IsNotFound(err) {
		t.forget(hpa) // it went meanwhile
		return 0, nil
	}
	return t.cfg.Settings.SyncPeriod, nil
}

// observe gathers the input of decide. of is the resource by which the target is scaled.
func (t *term) observe(
	ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler,
) (o observed, of schema.GroupResource) {
	o.hpa = hpa
	o.target, of, o.targetErr = t.scales.get(ctx, hpa.Namespace, hpa.Spec.ScaleTargetRef)
	if o.targetErr != nil || !wantsMetrics(hpa, o.target) || o.target.Status.Selector == "" {
		return o, of
	}
	selector, err := labels.Parse(o.target.Status.Selector)
	if err != nil {
		o.selectorErr = err
		return o, of
	}
	if o.pods, err = t.pods.Pods(hpa.Namespace).List(selector); err != nil {
		o.targetErr = err // an informer's: it does not happen
		return o, of
	}
	if o.rivals = t.rivals(hpa, selector, o.pods); len(o.rivals) > 1 {
		return o, of
	}
	for i := range hpa.Spec.Metrics {
		o.readings = append(o.readings, t.metrics.read(ctx, hpa.Namespace, selector, &hpa.Spec.Metrics[i]))
	}
	return o, of
}

// rivals returns the autoscalers of the same pods, this one included. These are the autoscalers of
// the same target, and those whose evaluated targets select one of the pods.
func (t *term) rivals(
	hpa *autoscalingv2.HorizontalPodAutoscaler, selector labels.Selector, pods []*corev1.Pod,
) []runtime.Key {
	self := runtime.KeyOf(hpa)
	rivals := []runtime.Key{self}
	t.mu.Lock()
	t.selectors[self] = selector
	for key, other := range t.selectors {
		if key != self && key.Namespace == self.Namespace &&
			slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return other.Matches(labels.Set(p.Labels)) }) {
			rivals = append(rivals, key)
		}
	}
	t.mu.Unlock()
	all, err := t.list.HorizontalPodAutoscalers(hpa.Namespace).List(labels.Everything())
	if err != nil {
		all = nil // an informer's: it does not happen
	}
	for _, other := range all {
		if other.Name != hpa.Name && sameTarget(other.Spec.ScaleTargetRef, hpa.Spec.ScaleTargetRef) {
			rivals = append(rivals, runtime.KeyOf(other))
		}
	}
	slices.SortFunc(rivals, func(a, b runtime.Key) int { return cmp.Compare(a.Name, b.Name) })
	return slices.Compact(rivals)
}

// sameTarget compares references without the version.
func sameTarget(a, b autoscalingv2.CrossVersionObjectReference) bool {
	x, errX := schema.ParseGroupVersion(a.APIVersion)
	y, errY := schema.ParseGroupVersion(b.APIVersion)
	return errX == nil && errY == nil && x.Group == y.Group && a.Kind == b.Kind && a.Name == b.Name
}

// rescale writes the target's scale. It overrides no change of the replicas since the decision;
// other concurrent changes do not stop it.
func (t *term) rescale(
	ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler, of schema.GroupResource,
	scale *autoscalingv1.Scale, replicas int32,
) error {
	from := scale.Spec.Replicas
	scale = scale.DeepCopy()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		scale.Spec.Replicas = replicas
		err := t.scales.put(ctx, of, scale)
		if !apierrors.IsConflict(err) || ctx.Err() != nil {
			return err
		}
		newest, _, getErr := t.scales.get(ctx, hpa.Namespace, hpa.Spec.ScaleTargetRef)
		if getErr != nil {
			return errors.Join(err, getErr)
		}
		if newest.Spec.Replicas != from {
			return fmt.Errorf("the target was scaled from %d to %d meanwhile", from, newest.Spec.Replicas)
		}
		scale = newest
		return err
	})
}

// sameConditions compares conditions without their times.
func sameConditions(a, b []autoscalingv2.HorizontalPodAutoscalerCondition) bool {
	return slices.EqualFunc(a, b, func(x, y autoscalingv2.HorizontalPodAutoscalerCondition) bool {
		return x.Type == y.Type && x.Status == y.Status && x.Reason == y.Reason && x.Message == y.Message
	})
}

func (t *term) writeStatus(
	ctx context.Context, key runtime.Key, hpa *autoscalingv2.HorizontalPodAutoscaler,
	status autoscalingv2.HorizontalPodAutoscalerStatus,
) error {
	if ctx.Err() != nil || equality.Semantic.DeepEqual(hpa.Status, status) {
		return nil
	}
	now := hpa.DeepCopy()
	now.Status = status
	now, err := t.client.AutoscalingV2().HorizontalPodAutoscalers(hpa.Namespace).UpdateStatus(ctx, now,
		metav1.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("writing the status of HorizontalPodAutoscaler %s: %w", key, err)
	}
	t.loop.Writes().Wrote(key, t.autoscalers, now.ResourceVersion)
	return nil
}

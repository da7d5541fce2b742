// Package daemonset keeps one pod of each DaemonSet on every node that it is for, and replaces the
// pods of older templates node by node.
//
// All choices are made by decide. The scheduler binds the pods: each is made for one node, by node
// affinity. The templates are kept as ControllerRevisions (package history), whose hash the pods
// have as a label. Only how long a failed pod stays is kept in memory.
package daemonset

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/claim"
	"github.com/barque/barque/controllers/history"
	"github.com/barque/barque/controllers/pods"
	"github.com/barque/barque/controllers/runtime"
)

var kind = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// Workers is how many DaemonSets are worked on at once. Default 2.
	Workers int
}

// Controller reconciles DaemonSets.
type Controller struct {
	cfg       Config
	sets      cache.SharedIndexInformer
	pods      cache.SharedIndexInformer
	nodes     cache.SharedIndexInformer
	revisions cache.SharedIndexInformer
	list      appslisters.DaemonSetLister
	listNodes corelisters.NodeLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.Workers <= 0 {
		cfg.Workers = 2
	}
	apps, core := cfg.Informers.Apps().V1(), cfg.Informers.Core().V1()
	c := &Controller{
		cfg: cfg, sets: apps.DaemonSets().Informer(), pods: core.Pods().Informer(), nodes: core.Nodes().Informer(),
		revisions: apps.ControllerRevisions().Informer(), list: apps.DaemonSets().Lister(), listNodes: core.Nodes().Lister(),
	}
	return c, errors.Join(runtime.EnsureControllerIndex(c.pods), runtime.EnsureControllerIndex(c.revisions))
}

// Run reconciles for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, "daemonset-controller")
	defer stop()
	t := &term{Controller: c, client: client, control: pods.Control{Client: client, Recorder: recorder}, stays: stays{known: map[place]stay{}}}
	t.loop = runtime.NewLoop("daemonset", c.cfg.Workers, c.cfg.Logger, t.reconcile)
	runtime.Watch(t.loop, c.sets, func(old, now *appsv1.DaemonSet) []runtime.Key {
		if now == nil {
			t.fresh.Forget(old.UID)
			t.stays.forget(old.UID)
			now = old
		}
		return []runtime.Key{runtime.KeyOf(now)}
	})
	runtime.Watch(t.loop, c.pods, t.setsOf)
	runtime.Watch(t.loop, c.nodes, t.onNode)
	runtime.Watch(t.loop, c.revisions, func(old, now *appsv1.ControllerRevision) []runtime.Key {
		if now == nil {
			now = old
		}
		if ref := metav1.GetControllerOfNoCopy(now); ref != nil && ref.Kind == kind.Kind {
			return []runtime.Key{{Namespace: now.Namespace, Name: ref.Name}}
		}
		return nil
	})
	return t.loop.Run(ctx)
}

// term is what belongs to one term of leadership.
type term struct {
	*Controller
	client  kubernetes.Interface
	control pods.Control
	loop    *runtime.Loop
	fresh   pods.Fresh
	stays   stays
}

// setsOf tells which DaemonSets care about the change of a pod.
func (t *term) setsOf(old, now *corev1.Pod) []runtime.Key {
	var keys []runtime.Key
	for _, pod := range []*corev1.Pod{old, now} {
		if pod == nil || (pod == old && now != nil && old.ResourceVersion == now.ResourceVersion) {
			continue
		}
		if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
			if ref.Kind == kind.Kind {
				keys = append(keys, runtime.Key{Namespace: pod.Namespace, Name: ref.Name})
			}
			continue
		}
		if pod != now || pod.DeletionTimestamp != nil {
			continue // an orphan that goes interests nobody
		}
		// The lister's own match is an error when nothing matches.
		sets, err := t.list.GetPodDaemonSets(pod)
		if err != nil {
			continue
		}
		for _, set := range sets {
			keys = append(keys, runtime.KeyOf(set))
		}
	}
	return keys
}

// onNode wakes all DaemonSets when a node comes, goes, or changes in what they look at.
func (t *term) onNode(old, now *corev1.Node) []runtime.Key {
	if old != nil && now != nil && equality.Semantic.DeepEqual(old.Labels, now.Labels) && equality.Semantic.DeepEqual(old.Spec.Taints, now.Spec.Taints) {
		return nil
	}
	sets, err := t.list.List(labels.Everything())
	if err != nil {
		return nil
	}
	keys := make([]runtime.Key, len(sets))
	for i, set := range sets {
		keys[i] = runtime.KeyOf(set)
	}
	return keys
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	set, err := t.list.DaemonSets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	// The history of one that is being deleted may be gone before its pods: nothing can be told then.
	if err != nil || set.DeletionTimestamp != nil {
		return 0, err
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return 0, fmt.Errorf("selector of DaemonSet %s: %w", key, err)
	}
	if selector.Empty() {
		t.control.Recorder.Event(set, corev1.EventTypeWarning, "SelectingAll", "This daemon set is selecting all pods. A non-empty selector is required.")
		return 0, nil
	}
	mine, revisions, err := t.claim(ctx, key, set, selector)
	if err != nil {
		return 0, err
	}
	nodes, err := t.listNodes.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	record, current, err := t.remember(ctx, key, set, revisions)
	if err != nil {
		return 0, err
	}
	p, err := decide(observed{set: set, nodes: nodes, pods: mine, hash: current.Labels[appsv1.DefaultDaemonSetUniqueLabelKey],
		wait: func(node string) time.Duration { return t.stays.left(placeOf(set, node), time.Now()) }}, time.Now())
	if err != nil {
		return 0, err
	}
	if len(p.create) > 0 {
		if behind, err := t.fresh.Behind(ctx, t.client, t.pods, set, selector); err != nil || behind {
			return runtime.Retry, err
		}
	}
	actErr := t.act(ctx, key, set, current, p)
	return p.again, errors.Join(actErr, t.prune(ctx, key, set, record, mine), t.writeStatus(ctx, key, set, p.status))
}

// claim adopts and releases pods and revisions.
func (t *term) claim(ctx context.Context, key runtime.Key, set *appsv1.DaemonSet, selector labels.Selector) ([]*corev1.Pod, []*appsv1.ControllerRevision, error) {
	alive := func(ctx context.Context) error {
		fresh, err := t.client.AppsV1().DaemonSets(set.Namespace).Get(ctx, set.Name, metav1.GetOptions{})
		return claim.StillThere(set, fresh, err)
	}
	owned, orphans, err := runtime.Controlled[corev1.Pod](t.pods, set.Namespace, set.UID)
	if err != nil {
		return nil, nil, err
	}
	mine, err := claim.Act(ctx, claim.Decide(set, selector, owned, orphans), set, kind, alive,
		func(ctx context.Context, name string, patch []byte) (*corev1.Pod, error) {
			return t.client.CoreV1().Pods(set.Namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		},
		func(pod *corev1.Pod) { t.loop.Writes().Wrote(key, t.pods, pod.ResourceVersion) })
	if err != nil {
		return nil, nil, err
	}
	ours, others, err := runtime.Controlled[appsv1.ControllerRevision](t.revisions, set.Namespace, set.UID)
	if err != nil {
		return nil, nil, err
	}
	revisions, err := claim.Act(ctx, claim.Decide(set, selector, ours, others), set, kind, alive,
		func(ctx context.Context, name string, patch []byte) (*appsv1.ControllerRevision, error) {
			return t.client.AppsV1().ControllerRevisions(set.Namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		},
		func(r *appsv1.ControllerRevision) { t.loop.Writes().Wrote(key, t.revisions, r.ResourceVersion) })
	return mine, revisions, err
}

// remember makes sure that the current template is the newest of the history.
func (t *term) remember(ctx context.Context, key runtime.Key, set *appsv1.DaemonSet, revisions []*appsv1.ControllerRevision) (history.Plan, *appsv1.ControllerRevision, error) {
	record, err := history.Decide(set, kind, &set.Spec.Template, set.Status.CollisionCount, revisions)
	if err != nil {
		return record, nil, fmt.Errorf("history of DaemonSet %s: %w", key, err)
	}
	current, taken, err := history.Act(ctx, t.client, set, record, func(r *appsv1.ControllerRevision) { t.loop.Writes().Wrote(key, t.revisions, r.ResourceVersion) })
	if taken {
		status := *set.Status.DeepCopy()
		count := int32(1)
		if status.CollisionCount != nil {
			count += *status.CollisionCount
		}
		status.CollisionCount = &count
		err = errors.Join(err, t.writeStatus(ctx, key, set, status))
	}
	if err != nil {
		return record, nil, fmt.Errorf("history of DaemonSet %s: %w", key, err)
	}
	return record, current, nil
}

// act carries a plan out.
func (t *term) act(ctx context.Context, key runtime.Key, set *appsv1.DaemonSet, current *appsv1.ControllerRevision, p plan) error {
	for _, e := range p.events {
		t.control.Recorder.Event(set, e.kind, e.reason, e.message)
	}
	for _, node := range p.failed {
		t.stays.failed(placeOf(set, node), time.Now())
	}
	var mu sync.Mutex
	next := 0
	created := pods.SlowStart(len(p.create), func() error {
		mu.Lock()
		node := p.create[next]
		next++
		mu.Unlock()
		pod, err := t.control.Create(ctx, set, podFor(set, node, current.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]))
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		if err == nil {
			t.loop.Writes().Wrote(key, t.pods, pod.ResourceVersion)
		}
		return err
	})
	return errors.Join(created, pods.Parallel(len(p.delete), func(i int) error {
		pod := p.delete[i]
		err := t.control.Delete(ctx, set, pod)
		if err == nil {
			t.loop.Writes().Deleted(key, t.pods, runtime.KeyOf(pod), pod.UID)
		}
		return err
	}))
}

// podFor makes the pod of a node.
func podFor(set *appsv1.DaemonSet, node, hash string) *corev1.Pod {
	pod := pods.FromTemplate(&set.Spec.Template, set, kind)
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = hash
	pod.Spec.Tolerations = withDefaults(pod.Spec.Tolerations, pod.Spec.HostNetwork)
	bindTo(&pod.Spec, node)
	return pod
}

// prune deletes the revisions beyond the limit that no pod has.
func (t *term) prune(ctx context.Context, key runtime.Key, set *appsv1.DaemonSet, record history.Plan, mine []*corev1.Pod) error {
	used := map[string]bool{}
	for _, pod := range mine {
		used[pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] = true
	}
	var errs []error
	for _, r := range record.Beyond(set.Spec.RevisionHistoryLimit, func(r *appsv1.ControllerRevision) bool { return used[r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] }) {
		err := t.client.AppsV1().ControllerRevisions(set.Namespace).Delete(ctx, r.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(r.UID))})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("deleting revision %s beyond the history limit: %w", r.Name, err))
			continue
		}
		t.loop.Writes().Deleted(key, t.revisions, runtime.KeyOf(r), r.UID)
	}
	return errors.Join(errs...)
}

func (t *term) writeStatus(ctx context.Context, key runtime.Key, set *appsv1.DaemonSet, status appsv1.DaemonSetStatus) error {
	if equality.Semantic.DeepEqual(set.Status, status) || ctx.Err() != nil {
		return nil
	}
	now := set.DeepCopy()
	now.Status = status
	now, err := t.client.AppsV1().DaemonSets(set.Namespace).UpdateStatus(ctx, now, metav1.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("writing the status of DaemonSet %s: %w", key, err)
	}
	t.loop.Writes().Wrote(key, t.sets, now.ResourceVersion)
	return nil
}

// Package daemonset keeps one pod of each DaemonSet on every fitting node, and replaces the pods of
// older templates node by node.
//
// All choices are made by decide. The scheduler binds the pods: each is made for one node, by node
// affinity. The templates are kept as ControllerRevisions (package history), whose hash the pods
// have as a label. Only the time that a failed pod stays is kept in memory.
package daemonset

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
		revisions: apps.ControllerRevisions().Informer(), list: apps.DaemonSets().Lister(),
		listNodes: core.Nodes().Lister(),
	}
	return c, errors.Join(runtime.EnsureControllerIndex(c.pods), runtime.EnsureControllerIndex(c.revisions))
}

// Run reconciles for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, "daemonset-controller")
	defer stop()
	t := &term{Controller: c, client: client, stays: stays{known: map[place]stay{}}}
	t.loop = runtime.NewLoop("daemonset", c.cfg.Workers, c.cfg.Logger, t.reconcile)
	t.control = pods.Control{Client: client, Recorder: recorder, Loop: t.loop, Informer: c.pods}
	t.history = history.Keeper{Client: client, Loop: t.loop, Informer: c.revisions}
	runtime.WatchOwners[appsv1.DaemonSet](t.loop, c.sets, func(uid types.UID) {
		t.fresh.Forget(uid)
		t.stays.forget(uid)
	})
	runtime.WatchOwned(t.loop, c.pods, kind, t.matching)
	runtime.Watch(t.loop, c.nodes, t.onNode)
	t.history.Watch(kind)
	return t.loop.Run(ctx)
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client  kubernetes.Interface
	control pods.Control
	history history.Keeper
	loop    *runtime.Loop
	fresh   pods.Fresh
	stays   stays
}

// matching returns the DaemonSets that may adopt a pod.
func (t *term) matching(pod *corev1.Pod, going bool) []runtime.Key {
	if going {
		return nil
	}
	// The lister's own match is an error when nothing matches.
	sets, err := t.list.GetPodDaemonSets(pod)
	if err != nil {
		return nil
	}
	keys := make([]runtime.Key, len(sets))
	for i, set := range sets {
		keys[i] = runtime.KeyOf(set)
	}
	return keys
}

// onNode wakes all DaemonSets when a node comes, goes, or changes in the fields they read.
func (t *term) onNode(old, now *corev1.Node) []runtime.Key {
	if old != nil && now != nil && equality.Semantic.DeepEqual(old.Labels, now.Labels) &&
		equality.Semantic.DeepEqual(old.Spec.Taints, now.Spec.Taints) {
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
	// The revisions of a terminating set may be deleted before its pods: its pods cannot be
	// compared then.
	if err != nil || set.DeletionTimestamp != nil {
		return 0, err
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return 0, fmt.Errorf("selector of DaemonSet %s: %w", key, err)
	}
	if selector.Empty() {
		t.control.Recorder.Event(set, corev1.EventTypeWarning, "SelectingAll",
			"This daemon set is selecting all pods. A non-empty selector is required.")
		return 0, nil
	}
	owner := claim.Owner{Object: set, Kind: kind, Selector: selector,
		Read: claim.ReadBy(t.client.AppsV1().DaemonSets(set.Namespace), set.Name)}
	mine, err := claim.Objects(ctx, t.loop, key, t.pods, owner, t.client.CoreV1().Pods(set.Namespace))
	if err != nil {
		return 0, err
	}
	revisions, err := t.history.Claim(ctx, key, owner)
	if err != nil {
		return 0, err
	}
	nodes, err := t.listNodes.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	record, err := history.Decide(set, kind, &set.Spec.Template, set.Status.CollisionCount, revisions)
	if err != nil {
		return 0, fmt.Errorf("history of DaemonSet %s: %w", key, err)
	}
	if record.Create != nil || record.Raise != nil { // or this is the template of before
		if behind, err := t.fresh.Behind(ctx, t.client, t.pods, owner, mine); err != nil || behind {
			return runtime.Retry, err
		}
	}
	current, err := t.remember(ctx, key, set, record)
	if err != nil {
		return 0, err
	}
	p, err := decide(
		observed{set: set, nodes: nodes, pods: mine, hash: current.Labels[appsv1.DefaultDaemonSetUniqueLabelKey],
			wait: func(node string) time.Duration { return t.stays.left(placeOf(set, node), time.Now()) }}, time.Now())
	if err != nil {
		return 0, err
	}
	if len(p.create) > 0 || len(p.delete) > 0 {
		if behind, err := t.fresh.Behind(ctx, t.client, t.pods, owner, mine); err != nil || behind {
			return runtime.Retry, err
		}
	}
	actErr := t.act(ctx, key, set, current, p)
	return p.again, errors.Join(actErr, t.prune(ctx, key, set, record, mine), t.writeStatus(ctx, key, set, p.status))
}

// remember makes sure that the current template is the newest of the history.
func (t *term) remember(
	ctx context.Context, key runtime.Key, set *appsv1.DaemonSet, record history.Plan,
) (*appsv1.ControllerRevision, error) {
	current, taken, err := t.history.Act(ctx, key, set, record)
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
		return nil, fmt.Errorf("history of DaemonSet %s: %w", key, err)
	}
	return current, nil
}

// act carries a plan out.
func (t *term) act(
	ctx context.Context, key runtime.Key, set *appsv1.DaemonSet, current *appsv1.ControllerRevision, p plan,
) error {
	for _, e := range p.events {
		t.control.Recorder.Event(set, e.kind, e.reason, e.message)
	}
	for _, node := range p.failed {
		t.stays.failed(placeOf(set, node), time.Now())
	}
	hash := current.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]
	_, created := t.control.CreateAll(ctx, key, set, len(p.create),
		func(i int) *corev1.Pod { return podFor(set, p.create[i], hash) })
	_, deleted := t.control.DeleteAll(ctx, key, set, p.delete)
	return errors.Join(created, deleted)
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
func (t *term) prune(
	ctx context.Context, key runtime.Key, set *appsv1.DaemonSet, record history.Plan, mine []*corev1.Pod,
) error {
	used := map[string]bool{}
	for _, pod := range mine {
		used[pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] = true
	}
	return t.history.Delete(ctx, key,
		record.Beyond(set.Spec.RevisionHistoryLimit, func(r *appsv1.ControllerRevision) bool {
			return used[r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]]
		}))
}

func (t *term) writeStatus(
	ctx context.Context, key runtime.Key, set *appsv1.DaemonSet, status appsv1.DaemonSetStatus,
) error {
	return runtime.WriteStatus(ctx, t.loop, key, t.sets, set.Status, status, func() (*appsv1.DaemonSet, error) {
		now := set.DeepCopy()
		now.Status = status
		return t.client.AppsV1().DaemonSets(set.Namespace).UpdateStatus(ctx, now, metav1.UpdateOptions{})
	})
}

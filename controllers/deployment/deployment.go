// Package deployment rolls Deployments out. It keeps one ReplicaSet per pod template, and moves
// replicas from the old ones to the newest within the limits of the strategy. It reports its
// progress in the status.
//
// All choices are made by decide, one step at a time, from the informers' view. The steps are small
// enough for a new leader to continue from any of them. Nothing about a rollout is kept in memory:
// revisions and sizes are in the ReplicaSets' annotations.
package deployment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/barque/barque/controllers/claim"
	"github.com/barque/barque/controllers/pods"
	"github.com/barque/barque/controllers/runtime"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// Workers is how many Deployments are worked on at once. Default 5.
	Workers int
}

// Controller reconciles Deployments.
type Controller struct {
	cfg         Config
	deployments cache.SharedIndexInformer
	sets        cache.SharedIndexInformer
	pods        cache.SharedIndexInformer
	list        appslisters.DeploymentLister
	listSets    appslisters.ReplicaSetLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.Workers <= 0 {
		cfg.Workers = 5
	}
	apps := cfg.Informers.Apps().V1()
	c := &Controller{
		cfg:         cfg,
		deployments: apps.Deployments().Informer(),
		sets:        apps.ReplicaSets().Informer(),
		pods:        cfg.Informers.Core().V1().Pods().Informer(),
		list:        apps.Deployments().Lister(),
		listSets:    apps.ReplicaSets().Lister(),
	}
	return c, errors.Join(runtime.EnsureControllerIndex(c.sets), runtime.EnsureControllerIndex(c.pods))
}

// Run reconciles for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, "deployment-controller")
	defer stop()
	t := &term{Controller: c, client: client, recorder: recorder}
	t.fresh.Owners, t.fresh.Newest = c.deployments, pods.Newest(client.AppsV1().Deployments(metav1.NamespaceAll).List)
	t.loop = runtime.NewLoop("deployment", c.cfg.Workers, c.cfg.Logger, t.reconcile)
	runtime.WatchOwners[appsv1.Deployment](t.loop, c.deployments, t.fresh.Forget)
	runtime.WatchOwned(t.loop, c.sets, kind, t.matching)
	runtime.Watch(t.loop, c.pods, t.ofPod)
	return t.loop.Run(ctx)
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client   kubernetes.Interface
	recorder record.EventRecorder
	loop     *runtime.Loop
	fresh    pods.Fresh
}

// matching returns the Deployments that may adopt a ReplicaSet.
func (t *term) matching(set *appsv1.ReplicaSet, going bool) []runtime.Key {
	if going {
		return nil
	}
	all, err := t.list.Deployments(set.Namespace).List(labels.Everything())
	if err != nil {
		return nil
	}
	return runtime.Selecting(all, func(d *appsv1.Deployment) *metav1.LabelSelector { return d.Spec.Selector }, set)
}

// ofPod wakes a Deployment that waits for the end of its old pods.
func (t *term) ofPod(old, now *corev1.Pod) []runtime.Key {
	pod := now
	if pod == nil {
		pod = old
	}
	if now != nil && (old == nil || !pods.Finished(now) || pods.Finished(old)) {
		return nil // nothing has ended
	}
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil || ref.Kind != "ReplicaSet" {
		return nil
	}
	set, err := t.listSets.ReplicaSets(pod.Namespace).Get(ref.Name)
	if err != nil {
		return nil
	}
	owner := metav1.GetControllerOfNoCopy(set)
	if owner == nil || owner.Kind != kind.Kind {
		return nil
	}
	d, err := t.list.Deployments(pod.Namespace).Get(owner.Name)
	if err != nil || d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		return nil
	}
	return []runtime.Key{runtime.KeyOf(d)}
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	d, err := t.list.Deployments(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return 0, fmt.Errorf("selector of Deployment %s: %w", key, err)
	}
	owner := claim.Owner{Object: d, Kind: kind, Selector: selector,
		Read: claim.ReadBy(t.client.AppsV1().Deployments(d.Namespace), d.Name)}
	o, err := t.observe(ctx, key, d, owner)
	if err != nil {
		return 0, err
	}
	p := decide(o, time.Now())
	if p.create != nil || len(p.update) > 0 || len(p.remove) > 0 {
		if behind, err := t.fresh.BehindSets(ctx, t.client, t.sets, owner, o.sets); err != nil || behind {
			return runtime.Retry, err
		}
	}
	return p.again, t.act(ctx, key, d, p)
}

// observe gathers the input of decide. It adopts and releases ReplicaSets before.
func (t *term) observe(
	ctx context.Context, key runtime.Key, d *appsv1.Deployment, owner claim.Owner,
) (observed, error) {
	sets, err := claim.Objects(ctx, t.loop, key, t.sets, owner, t.client.AppsV1().ReplicaSets(d.Namespace))
	if err != nil {
		return observed{}, err
	}
	o := observed{deployment: d, sets: sets}
	if d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		return o, nil
	}
	o.unfinished = map[*appsv1.ReplicaSet]int{}
	for _, set := range sets {
		owned, _, err := runtime.Controlled[corev1.Pod](t.pods, set.Namespace, set.UID)
		if err != nil {
			return observed{}, err
		}
		for _, pod := range owned {
			if !pods.Finished(pod) {
				o.unfinished[set]++
			}
		}
	}
	return o, nil
}

// act carries a plan out. The status is written last and also when something before it failed.
func (t *term) act(ctx context.Context, key runtime.Key, d *appsv1.Deployment, p plan) error {
	var errs []error
	if p.create != nil {
		errs = append(errs, t.create(ctx, key, d, &p))
	}
	for _, c := range p.update {
		errs = append(errs, t.update(ctx, key, d, c))
	}
	for _, set := range p.remove {
		errs = append(errs, t.remove(ctx, key, set))
	}
	if errors.Join(errs...) != nil {
		p.revision = 0 // shown when its ReplicaSet is as it should be
	}
	return errors.Join(append(errs, t.writeStatus(ctx, key, d, p.status, p.revision))...)
}

// create makes the newest ReplicaSet. If a set with another template has its name, the collision
// count rises, which changes the name at the next reconcile.
func (t *term) create(ctx context.Context, key runtime.Key, d *appsv1.Deployment, p *plan) error {
	made, err := t.client.AppsV1().ReplicaSets(d.Namespace).Create(ctx, p.create, metav1.CreateOptions{})
	switch {
	case err == nil:
		t.loop.Writes().Wrote(key, t.sets, made.ResourceVersion)
		t.scaled(d, made, 0)
		return nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case apierrors.IsAlreadyExists(err):
		there, err := t.client.AppsV1().ReplicaSets(d.Namespace).Get(ctx, p.create.Name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading ReplicaSet %s, whose name is taken: %w", p.create.Name, err)
		}
		if metav1.IsControlledBy(there, d) && sameTemplate(&there.Spec.Template, &d.Spec.Template) {
			t.loop.Writes().Wrote(key, t.sets, there.ResourceVersion) // ours, from a moment ago
			return nil
		}
		var collisions int32
		if p.status.CollisionCount != nil {
			collisions = *p.status.CollisionCount
		}
		collisions++
		p.status.CollisionCount = &collisions
		return fmt.Errorf("name %s is taken by another ReplicaSet", p.create.Name)
	}
	if hasDeadline(d) {
		setCondition(&p.status, appsv1.DeploymentProgressing, corev1.ConditionFalse, reasonCreateFailed,
			fmt.Sprintf("Failed to create new replica set %q: %v", p.create.Name, err), time.Now())
	}
	t.recorder.Eventf(d, corev1.EventTypeWarning, reasonCreateFailed, "Failed to create new replica set %q: %v",
		p.create.Name, err)
	return fmt.Errorf("creating ReplicaSet %s: %w", p.create.Name, err)
}

func (t *term) update(ctx context.Context, key runtime.Key, d *appsv1.Deployment, c change) error {
	now, err := t.client.AppsV1().ReplicaSets(d.Namespace).Update(ctx, c.set, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("updating ReplicaSet %s: %w", c.set.Name, err)
	}
	t.loop.Writes().Wrote(key, t.sets, now.ResourceVersion)
	t.scaled(d, now, c.from)
	return nil
}

// scaled writes an event about a change of size.
func (t *term) scaled(d *appsv1.Deployment, set *appsv1.ReplicaSet, from int32) {
	to := replicasOf(set)
	switch {
	case to > from:
		t.recorder.Eventf(d, corev1.EventTypeNormal, "ScalingReplicaSet", "Scaled up replica set %s from %d to %d",
			set.Name, from, to)
	case to < from:
		t.recorder.Eventf(d, corev1.EventTypeNormal, "ScalingReplicaSet", "Scaled down replica set %s from %d to %d",
			set.Name, from, to)
	}
}

func (t *term) remove(ctx context.Context, key runtime.Key, set *appsv1.ReplicaSet) error {
	err := t.client.AppsV1().ReplicaSets(set.Namespace).Delete(ctx, set.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &set.UID, ResourceVersion: &set.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting ReplicaSet %s beyond the history limit: %w", set.Name, err)
	}
	t.loop.Writes().Deleted(key, t.sets, runtime.KeyOf(set), set.UID)
	return nil
}

// writeStatus writes the status and, unless it is 0, the revision: in one write, and one that makes
// no new generation of the Deployment.
func (t *term) writeStatus(
	ctx context.Context, key runtime.Key, d *appsv1.Deployment, status appsv1.DeploymentStatus, revision int64,
) error {
	if (revision == 0 && equality.Semantic.DeepEqual(d.Status, status)) || ctx.Err() != nil {
		return nil
	}
	now := d.DeepCopy()
	now.Status = status
	if revision != 0 {
		metav1.SetMetaDataAnnotation(&now.ObjectMeta, Revision, strconv.FormatInt(revision, 10))
	}
	now, err := t.client.AppsV1().Deployments(d.Namespace).UpdateStatus(ctx, now, metav1.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("writing the status of Deployment %s: %w", key, err)
	}
	t.loop.Writes().Wrote(key, t.deployments, now.ResourceVersion)
	return nil
}

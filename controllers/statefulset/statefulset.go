// Package statefulset keeps the pods of StatefulSets: each has an identity (an ordinal, a name, its
// claims) that outlives it. They come and go in order, or all at once where that is asked for.
//
// All choices are made by decide. The templates are kept as ControllerRevisions (package history),
// by whose names the pods are labelled. Nothing is kept in memory.
package statefulset

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/barque/barque/controllers/claim"
	"github.com/barque/barque/controllers/history"
	"github.com/barque/barque/controllers/pods"
	"github.com/barque/barque/controllers/runtime"
)

var kind = appsv1.SchemeGroupVersion.WithKind("StatefulSet")

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// Workers is how many StatefulSets are worked on at once. Default 5.
	Workers int
}

// Controller reconciles StatefulSets.
type Controller struct {
	cfg        Config
	sets       cache.SharedIndexInformer
	pods       cache.SharedIndexInformer
	claims     cache.SharedIndexInformer
	revisions  cache.SharedIndexInformer
	list       appslisters.StatefulSetLister
	listClaims corelisters.PersistentVolumeClaimLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.Workers <= 0 {
		cfg.Workers = 5
	}
	apps, core := cfg.Informers.Apps().V1(), cfg.Informers.Core().V1()
	c := &Controller{
		cfg: cfg, sets: apps.StatefulSets().Informer(), pods: core.Pods().Informer(),
		claims:    core.PersistentVolumeClaims().Informer(),
		revisions: apps.ControllerRevisions().Informer(), list: apps.StatefulSets().Lister(),
		listClaims: core.PersistentVolumeClaims().Lister(),
	}
	return c, errors.Join(runtime.EnsureControllerIndex(c.pods), runtime.EnsureControllerIndex(c.revisions))
}

// Run reconciles for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, "statefulset-controller")
	defer stop()
	t := &term{Controller: c, client: client, recorder: recorder}
	t.loop = runtime.NewLoop("statefulset", c.cfg.Workers, c.cfg.Logger, t.reconcile)
	t.history = history.Keeper{Client: client, Loop: t.loop, Informer: c.revisions}
	runtime.WatchOwners[appsv1.StatefulSet](t.loop, c.sets, t.fresh.Forget)
	runtime.WatchOwned(t.loop, c.pods, kind, t.matching)
	t.history.Watch(kind)
	// A claim whose deletion a new pod has waited for.
	runtime.Watch(t.loop, c.claims, func(old, now *corev1.PersistentVolumeClaim) []runtime.Key {
		if now != nil {
			return nil
		}
		return t.setsOfClaim(old)
	})
	return t.loop.Run(ctx)
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client   kubernetes.Interface
	recorder record.EventRecorder
	history  history.Keeper
	loop     *runtime.Loop
	fresh    pods.Fresh
}

// matching returns the StatefulSets that a pod without a controller concerns. The end of a pod
// frees its name.
func (t *term) matching(pod *corev1.Pod, _ bool) []runtime.Key {
	// The lister's own match is an error when nothing matches.
	sets, err := t.list.GetPodStatefulSets(pod)
	if err != nil {
		return nil
	}
	var keys []runtime.Key
	for _, set := range sets {
		if _, theirs := ordinalOf(set, pod); theirs {
			keys = append(keys, runtime.KeyOf(set))
		}
	}
	return keys
}

func (t *term) setsOfClaim(gone *corev1.PersistentVolumeClaim) []runtime.Key {
	sets, err := t.list.StatefulSets(gone.Namespace).List(labels.Everything())
	if err != nil {
		return nil
	}
	var keys []runtime.Key
	for _, set := range sets {
		selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
		if err == nil && len(set.Spec.VolumeClaimTemplates) > 0 && selector.Matches(labels.Set(gone.Labels)) {
			keys = append(keys, runtime.KeyOf(set))
		}
	}
	return keys
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	set, err := t.list.StatefulSets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return 0, fmt.Errorf("selector of StatefulSet %s: %w", key, err)
	}
	owner := claim.Owner{Object: set, Kind: kind, Selector: selector,
		Read: claim.ReadBy(t.client.AppsV1().StatefulSets(set.Namespace), set.Name),
		May:  func(obj metav1.Object) bool { _, theirs := ordinalOf(set, obj); return theirs }}
	mine, err := claim.Objects(ctx, t.loop, key, t.pods, owner, t.client.CoreV1().Pods(set.Namespace))
	if err != nil {
		return 0, err
	}
	revisions, err := t.history.Claim(ctx, key, owner)
	if err != nil {
		return 0, err
	}
	record, err := history.Decide(set, kind, &set.Spec.Template, set.Status.CollisionCount, revisions)
	if err != nil {
		return 0, fmt.Errorf("history of StatefulSet %s: %w", key, err)
	}
	if record.Create != nil || record.Raise != nil { // or this is the template of before
		if behind, err := t.fresh.Behind(ctx, t.client, t.pods, owner, mine); err != nil || behind {
			return runtime.Retry, err
		}
	}
	o, err := t.observe(ctx, key, set, mine, revisions, record)
	if err != nil {
		return 0, err
	}
	p, err := decide(o, time.Now())
	if err != nil {
		return 0, err
	}
	if len(p.create) > 0 || len(p.delete) > 0 {
		if behind, err := t.fresh.Behind(ctx, t.client, t.pods, owner, mine); err != nil || behind {
			return runtime.Retry, err
		}
	}
	actErr := t.act(ctx, key, set, p)
	return p.again, errors.Join(actErr, t.writeStatus(ctx, key, set, p.status), t.prune(ctx, key, set, record, o))
}

// observe gathers the input of decide, and notes the current template in the history.
func (t *term) observe(
	ctx context.Context, key runtime.Key, set *appsv1.StatefulSet, mine []*corev1.Pod,
	revisions []*appsv1.ControllerRevision, record history.Plan,
) (observed, error) {
	o := observed{set: set, pods: mine, claims: map[string]*corev1.PersistentVolumeClaim{}}
	update := record.Current
	if set.DeletionTimestamp == nil {
		now, taken, err := t.history.Act(ctx, key, set, record)
		update = now
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
			return observed{}, fmt.Errorf("history of StatefulSet %s: %w", key, err)
		}
	}
	o.update = version{set.Status.UpdateRevision, &set.Spec.Template}
	if update != nil {
		o.update.name = update.Name
	}
	o.current = o.update
	for _, r := range revisions {
		if r.Name != set.Status.CurrentRevision || r.Name == o.update.name {
			continue
		}
		template, err := history.Template(r)
		if err != nil {
			return observed{}, err
		}
		o.current = version{r.Name, template}
	}
	if len(set.Spec.VolumeClaimTemplates) == 0 {
		return o, nil
	}
	claims, err := t.listClaims.PersistentVolumeClaims(set.Namespace).List(labels.Everything())
	if err != nil {
		return observed{}, err
	}
	for _, c := range claims {
		o.claims[c.Name] = c
	}
	return o, nil
}

// act carries a plan out. A pod is not created when one of the claims could not be.
func (t *term) act(ctx context.Context, key runtime.Key, set *appsv1.StatefulSet, p plan) error {
	for _, e := range p.events {
		t.recorder.Event(set, e.kind, e.reason, e.message)
	}
	var errs []error
	for _, c := range p.createClaims {
		now, err := t.client.CoreV1().PersistentVolumeClaims(set.Namespace).Create(ctx, c, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			continue // the informer will show it
		}
		t.tellClaim(ctx, set, c, err)
		if err != nil {
			errs = append(errs, fmt.Errorf("creating claim %s: %w", c.Name, err))
			continue
		}
		t.loop.Writes().Wrote(key, t.claims, now.ResourceVersion)
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for _, c := range p.updateClaims {
		now, err := t.client.CoreV1().PersistentVolumeClaims(set.Namespace).Update(ctx, c, metav1.UpdateOptions{})
		if err != nil {
			errs = append(errs, fmt.Errorf("writing the owners of claim %s: %w", c.Name, err))
			continue
		}
		t.loop.Writes().Wrote(key, t.claims, now.ResourceVersion)
	}
	if len(errs) > 0 {
		return errors.Join(errs...) // a pod's claims would survive it against the policy
	}
	if err := t.create(ctx, key, set, p.create); err != nil {
		return err
	}
	for _, pod := range p.relabel {
		now, err := t.client.CoreV1().Pods(set.Namespace).Update(ctx, pod, metav1.UpdateOptions{})
		t.tell(ctx, set, "update", pod, err)
		if err != nil {
			return fmt.Errorf("labelling pod %s: %w", pod.Name, err)
		}
		t.loop.Writes().Wrote(key, t.pods, now.ResourceVersion)
	}
	return pods.Parallel(len(p.delete), func(i int) error {
		pod := p.delete[i]
		err := t.client.CoreV1().Pods(set.Namespace).Delete(ctx, pod.Name,
			metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil // it is gone, or another pod has its name
		}
		t.tell(ctx, set, "delete", pod, err)
		if err == nil {
			t.loop.Writes().Deleted(key, t.pods, runtime.KeyOf(pod), pod.UID)
		}
		return err
	})
}

func (t *term) create(ctx context.Context, key runtime.Key, set *appsv1.StatefulSet, list []*corev1.Pod) error {
	return pods.SlowStart(len(list), func(i int) error {
		pod := list[i]
		now, err := t.client.CoreV1().Pods(set.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		if !apierrors.IsAlreadyExists(err) {
			t.tell(ctx, set, "create", pod, err)
		}
		if err != nil {
			return fmt.Errorf("creating pod %s: %w", pod.Name, err)
		}
		t.loop.Writes().Wrote(key, t.pods, now.ResourceVersion)
		return nil
	})
}

var titles = map[string]string{"create": "Create", "update": "Update", "delete": "Delete"}

// tell writes an event about a pod's change, with the messages of Kubernetes.
func (t *term) tell(ctx context.Context, set *appsv1.StatefulSet, verb string, pod *corev1.Pod, err error) {
	switch {
	case err == nil:
		t.recorder.Eventf(set, corev1.EventTypeNormal, "Successful"+titles[verb],
			"%s Pod %s in StatefulSet %s successful", verb, pod.Name, set.Name)
	case ctx.Err() == nil:
		t.recorder.Eventf(set, corev1.EventTypeWarning, "Failed"+titles[verb],
			"%s Pod %s in StatefulSet %s failed error: %s", verb, pod.Name, set.Name, err)
	}
}

// tellClaim records that a claim was created, in the words of Kubernetes. A claim's name ends like
// that of its pod, with the ordinal.
func (t *term) tellClaim(ctx context.Context, set *appsv1.StatefulSet, c *corev1.PersistentVolumeClaim, err error) {
	pod := set.Name + c.Name[strings.LastIndexByte(c.Name, '-'):]
	switch {
	case err == nil:
		t.recorder.Eventf(set, corev1.EventTypeNormal, "SuccessfulCreate",
			"create Claim %s Pod %s in StatefulSet %s success", c.Name, pod, set.Name)
	case ctx.Err() == nil:
		t.recorder.Eventf(set, corev1.EventTypeWarning, "FailedCreate",
			"create Claim %s for Pod %s in StatefulSet %s failed error: %s", c.Name, pod, set.Name, err)
	}
}

// prune deletes the revisions beyond the limit that neither the set nor a pod has.
func (t *term) prune(
	ctx context.Context, key runtime.Key, set *appsv1.StatefulSet, record history.Plan, o observed,
) error {
	if set.DeletionTimestamp != nil {
		return nil
	}
	live := map[string]bool{o.current.name: true, o.update.name: true, set.Status.CurrentRevision: true}
	for _, pod := range o.pods {
		live[revisionOf(pod)] = true
	}
	var idle []*appsv1.ControllerRevision
	for _, r := range record.Old {
		if !live[r.Name] {
			idle = append(idle, r)
		}
	}
	record.Old = idle // live ones do not count towards the limit
	return t.history.Delete(ctx, key,
		record.Beyond(set.Spec.RevisionHistoryLimit, func(*appsv1.ControllerRevision) bool { return false }))
}

func (t *term) writeStatus(
	ctx context.Context, key runtime.Key, set *appsv1.StatefulSet, status appsv1.StatefulSetStatus,
) error {
	return runtime.WriteStatus(ctx, t.loop, key, t.sets, set.Status, status, func() (*appsv1.StatefulSet, error) {
		now := set.DeepCopy()
		now.Status = status
		return t.client.AppsV1().StatefulSets(set.Namespace).UpdateStatus(ctx, now, metav1.UpdateOptions{})
	})
}

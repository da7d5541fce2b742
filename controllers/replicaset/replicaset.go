// Package replicaset keeps as many pods alive as each ReplicaSet wants: it creates what is
// missing, deletes what is too much in the order of package pods, adopts matching orphans, lets go
// what no longer matches, and writes the status.
//
// It acts on its informers' picture only when that shows its own last writes (runtime.Writes). The
// first time in a term that it would create pods for a ReplicaSet it asks the API server instead,
// because the leader before it may have created them a moment ago.
package replicaset

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/claim"
	"github.com/barque/barque/controllers/pods"
	"github.com/barque/barque/controllers/runtime"
)

var kind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// Workers is how many ReplicaSets are worked on at once. Default 5.
	Workers int
}

// Controller reconciles ReplicaSets.
type Controller struct {
	cfg  Config
	sets cache.SharedIndexInformer
	pods cache.SharedIndexInformer
	list appslisters.ReplicaSetLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.Workers <= 0 {
		cfg.Workers = 5
	}
	c := &Controller{
		cfg:  cfg,
		sets: cfg.Informers.Apps().V1().ReplicaSets().Informer(),
		pods: cfg.Informers.Core().V1().Pods().Informer(),
		list: cfg.Informers.Apps().V1().ReplicaSets().Lister(),
	}
	return c, errors.Join(runtime.EnsureControllerIndex(c.sets), runtime.EnsureControllerIndex(c.pods))
}

// Run reconciles for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, "replicaset-controller")
	defer stop()
	t := &term{Controller: c, client: client, control: pods.Control{Client: client, Recorder: recorder}, checked: map[types.UID]bool{}}
	t.loop = runtime.NewLoop("replicaset", c.cfg.Workers, c.cfg.Logger, t.reconcile)
	runtime.Watch(t.loop, c.sets, func(old, now *appsv1.ReplicaSet) []runtime.Key {
		if now == nil {
			t.forget(old.UID)
			now = old
		}
		return []runtime.Key{runtime.KeyOf(now)}
	})
	runtime.Watch(t.loop, c.pods, t.setsOf)
	return t.loop.Run(ctx)
}

// term is what belongs to one term of leadership.
type term struct {
	*Controller
	client  kubernetes.Interface
	control pods.Control
	loop    *runtime.Loop

	mu sync.Mutex
	// checked holds the ReplicaSets whose pods have been read from the API server in this term.
	checked map[types.UID]bool
}

func (t *term) forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.checked, uid)
}

// setsOf tells which ReplicaSets care about the change of a pod.
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
		sets, err := t.list.GetPodReplicaSets(pod)
		if err != nil {
			continue
		}
		oldestFirst(sets)
		for _, set := range sets {
			keys = append(keys, runtime.KeyOf(set))
		}
	}
	return keys
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	set, err := t.list.ReplicaSets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return 0, fmt.Errorf("selector of ReplicaSet %s: %w", key, err)
	}
	owned, orphans, err := runtime.Controlled[corev1.Pod](t.pods, set.Namespace, set.UID)
	if err != nil {
		return 0, err
	}
	mine, err := t.claim(ctx, key, set, claim.Decide(set, selector, owned, orphans))
	if err != nil {
		return 0, err
	}
	related, err := t.related(set, mine)
	if err != nil {
		return 0, err
	}
	p := decide(set, mine, related, time.Now())
	if p.create > 0 && !t.isChecked(set.UID) {
		// Once per ReplicaSet and term: see the package's comment.
		if behind, err := t.behind(ctx, set, selector); err != nil || behind {
			return runtime.Retry, err
		}
	}
	actErr := t.act(ctx, key, set, p)
	return p.again, errors.Join(actErr, t.writeStatus(ctx, key, set, statusOf(set, mine, failureOf(p, actErr), time.Now())))
}

func (t *term) claim(ctx context.Context, key runtime.Key, set *appsv1.ReplicaSet, p claim.Plan[*corev1.Pod]) ([]*corev1.Pod, error) {
	return claim.Act(ctx, p, set, kind,
		func(ctx context.Context) error {
			fresh, err := t.client.AppsV1().ReplicaSets(set.Namespace).Get(ctx, set.Name, metav1.GetOptions{})
			return claim.StillThere(set, fresh, err)
		},
		func(ctx context.Context, name string, patch []byte) (*corev1.Pod, error) {
			return t.client.CoreV1().Pods(set.Namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		},
		func(pod *corev1.Pod) { t.loop.Writes().Wrote(key, t.pods, pod.ResourceVersion) })
}

// related returns the pods of all ReplicaSets that have the same controller as set.
func (t *term) related(set *appsv1.ReplicaSet, mine []*corev1.Pod) ([]*corev1.Pod, error) {
	owner := metav1.GetControllerOfNoCopy(set)
	if owner == nil {
		return mine, nil
	}
	siblings, _, err := runtime.Controlled[appsv1.ReplicaSet](t.sets, set.Namespace, owner.UID)
	if err != nil {
		return nil, err
	}
	related := append([]*corev1.Pod(nil), mine...)
	for _, sibling := range siblings {
		if sibling.UID == set.UID {
			continue
		}
		theirs, _, err := runtime.Controlled[corev1.Pod](t.pods, sibling.Namespace, sibling.UID)
		if err != nil {
			return nil, err
		}
		related = append(related, theirs...)
	}
	return related, nil
}

func (t *term) isChecked(uid types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.checked[uid]
}

// behind reports whether the informer lacks pods of set that the API server has.
func (t *term) behind(ctx context.Context, set *appsv1.ReplicaSet, selector labels.Selector) (bool, error) {
	live, err := t.client.CoreV1().Pods(set.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return false, fmt.Errorf("reading the pods of ReplicaSet %s/%s: %w", set.Namespace, set.Name, err)
	}
	for i := range live.Items {
		pod := &live.Items[i]
		if !metav1.IsControlledBy(pod, set) {
			continue
		}
		if _, exists, err := t.pods.GetIndexer().GetByKey(runtime.KeyOf(pod).String()); err != nil || !exists {
			return true, err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.checked[set.UID] = true
	return false, nil
}

func (t *term) act(ctx context.Context, key runtime.Key, set *appsv1.ReplicaSet, p plan) error {
	if p.create > 0 {
		return pods.SlowStart(p.create, func() error {
			pod, err := t.control.Create(ctx, set, pods.FromTemplate(&set.Spec.Template, set, kind))
			if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
				return nil // the namespace takes the ReplicaSet with it
			}
			if err == nil {
				t.loop.Writes().Wrote(key, t.pods, pod.ResourceVersion)
			}
			return err
		})
	}
	return pods.Parallel(len(p.delete), func(i int) error {
		pod := p.delete[i]
		err := t.control.Delete(ctx, set, pod)
		if err == nil {
			t.loop.Writes().Deleted(key, t.pods, runtime.KeyOf(pod), pod.UID)
		}
		return err
	})
}

func failureOf(p plan, err error) *failure {
	switch {
	case err == nil:
		return nil
	case p.create > 0:
		return &failure{reason: "FailedCreate", message: err.Error()}
	}
	return &failure{reason: "FailedDelete", message: err.Error()}
}

func (t *term) writeStatus(ctx context.Context, key runtime.Key, set *appsv1.ReplicaSet, status appsv1.ReplicaSetStatus) error {
	if sameStatus(set.Status, status) || ctx.Err() != nil {
		return nil
	}
	now := set.DeepCopy()
	now.Status = status
	now, err := t.client.AppsV1().ReplicaSets(set.Namespace).UpdateStatus(ctx, now, metav1.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("writing the status of ReplicaSet %s: %w", key, err)
	}
	t.loop.Writes().Wrote(key, t.sets, now.ResourceVersion)
	return nil
}

// Package replicaset keeps as many pods alive as each ReplicaSet wants: it creates what is
// missing, deletes what is too much in the order of package pods, adopts matching orphans, lets go
// what no longer matches, and writes the status. ReplicationControllers are ReplicaSets of another
// name to it.
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
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/claim"
	"github.com/barque/barque/controllers/pods"
	"github.com/barque/barque/controllers/runtime"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// Workers is how many ReplicaSets are worked on at once. Default 5.
	Workers int
}

// Controller reconciles ReplicaSets, or what it takes for them.
type Controller struct {
	cfg       Config
	source    source
	component string // that events come from
	kind      schema.GroupVersionKind
	sets      cache.SharedIndexInformer
	pods      cache.SharedIndexInformer
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	return newController(cfg, ownOf(cfg.Informers), "replicaset-controller")
}

// NewReplication makes the controller of ReplicationControllers.
func NewReplication(cfg Config) (*Controller, error) {
	return newController(cfg, replicationOf(cfg.Informers), "replication-controller")
}

func newController(cfg Config, from source, component string) (*Controller, error) {
	if cfg.Workers <= 0 {
		cfg.Workers = 5
	}
	c := &Controller{
		cfg: cfg, source: from, component: component, kind: from.kind(), sets: from.informer(),
		pods: cfg.Informers.Core().V1().Pods().Informer(),
	}
	return c, errors.Join(runtime.EnsureControllerIndex(c.sets), runtime.EnsureControllerIndex(c.pods))
}

// Run reconciles for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, c.component)
	defer stop()
	t := &term{Controller: c, client: client, control: pods.Control{Client: client, Recorder: recorder}}
	t.loop = runtime.NewLoop(strings.ToLower(c.kind.Kind), c.cfg.Workers, c.cfg.Logger, t.reconcile)
	c.source.watch(t.loop, t.fresh.Forget)
	runtime.Watch(t.loop, c.pods, t.setsOf)
	return t.loop.Run(ctx)
}

// term is what belongs to one term of leadership.
type term struct {
	*Controller
	client  kubernetes.Interface
	control pods.Control
	loop    *runtime.Loop
	fresh   pods.Fresh
}

// setsOf tells which ReplicaSets care about the change of a pod.
func (t *term) setsOf(old, now *corev1.Pod) []runtime.Key {
	var keys []runtime.Key
	for _, pod := range []*corev1.Pod{old, now} {
		if pod == nil || (pod == old && now != nil && old.ResourceVersion == now.ResourceVersion) {
			continue
		}
		if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
			if ref.Kind == t.kind.Kind {
				keys = append(keys, runtime.Key{Namespace: pod.Namespace, Name: ref.Name})
			}
			continue
		}
		if pod != now || pod.DeletionTimestamp != nil {
			continue // an orphan that goes interests nobody
		}
		sets := t.source.matching(pod)
		oldestFirst(sets)
		for _, set := range sets {
			keys = append(keys, runtime.KeyOf(set))
		}
	}
	return keys
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	set, err := t.source.get(key.Namespace, key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return 0, fmt.Errorf("selector of %s %s: %w", t.kind.Kind, key, err)
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
	if p.create > 0 { // see the package's comment
		if behind, err := t.fresh.Behind(ctx, t.client, t.pods, set, selector); err != nil || behind {
			return runtime.Retry, err
		}
	}
	actErr := t.act(ctx, key, set, p)
	return p.again, errors.Join(actErr, t.writeStatus(ctx, key, set, statusOf(set, mine, failureOf(p, actErr), time.Now())))
}

func (t *term) claim(ctx context.Context, key runtime.Key, set *appsv1.ReplicaSet, p claim.Plan[*corev1.Pod]) ([]*corev1.Pod, error) {
	return claim.Act(ctx, p, set, t.kind,
		func(ctx context.Context) error {
			fresh, err := t.source.read(ctx, t.client, set.Namespace, set.Name)
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

func (t *term) act(ctx context.Context, key runtime.Key, set *appsv1.ReplicaSet, p plan) error {
	if p.create > 0 {
		return pods.SlowStart(p.create, func() error {
			pod, err := t.control.Create(ctx, t.source.subject(set), pods.FromTemplate(&set.Spec.Template, set, t.kind))
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
		err := t.control.Delete(ctx, t.source.subject(set), pod)
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
	status = t.source.status(status)
	if sameStatus(set.Status, status) || ctx.Err() != nil {
		return nil
	}
	now := set.DeepCopy()
	now.Status = status
	version, err := t.source.writeStatus(ctx, t.client, now)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("writing the status of %s %s: %w", t.kind.Kind, key, err)
	}
	t.loop.Writes().Wrote(key, t.sets, version)
	return nil
}

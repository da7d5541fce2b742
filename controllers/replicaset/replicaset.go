// Package replicaset keeps as many pods running as each ReplicaSet wants. It creates missing pods,
// deletes surplus ones in the order of package pods, adopts matching orphans, and releases pods
// that no longer match. It writes the status. ReplicationControllers are handled as ReplicaSets.
//
// It acts only when its informers show its own last writes (runtime.Writes). The first time in a
// term they must also show those of the former leader (pods.Fresh).
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

// Controller reconciles ReplicaSets, or ReplicationControllers in their form.
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
	t := &term{Controller: c, client: client}
	t.fresh.Owners, t.fresh.Newest = c.sets,
		func(ctx context.Context) (string, error) { return c.source.newest(ctx, client) }
	t.loop = runtime.NewLoop(strings.ToLower(c.kind.Kind), c.cfg.Workers, c.cfg.Logger, t.reconcile)
	t.control = pods.Control{Client: client, Recorder: recorder, Loop: t.loop, Informer: c.pods}
	c.source.watch(t.loop, t.fresh.Forget)
	runtime.WatchOwned(t.loop, c.pods, c.kind, t.matching)
	return t.loop.Run(ctx)
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client  kubernetes.Interface
	control pods.Control
	loop    *runtime.Loop
	fresh   pods.Fresh
}

// matching returns the ReplicaSets that may adopt a pod.
func (t *term) matching(pod *corev1.Pod, going bool) []runtime.Key {
	if going {
		return nil
	}
	sets := t.source.matching(pod)
	oldestFirst(sets)
	keys := make([]runtime.Key, len(sets))
	for i, set := range sets {
		keys[i] = runtime.KeyOf(set)
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
	owner := claim.Owner{Object: set, Kind: t.kind, Selector: selector,
		Read: func(ctx context.Context) (metav1.Object, error) {
			return t.source.read(ctx, t.client, set.Namespace, set.Name)
		}}
	mine, err := claim.Objects(ctx, t.loop, key, t.pods, owner, t.client.CoreV1().Pods(set.Namespace))
	if err != nil {
		return 0, err
	}
	related, err := t.related(set, mine)
	if err != nil {
		return 0, err
	}
	p := decide(set, mine, related, time.Now())
	if p.create > 0 || len(p.delete) > 0 {
		if behind, err := t.fresh.Behind(ctx, t.client, t.pods, owner, mine); err != nil || behind {
			return runtime.Retry, err
		}
	}
	actErr := t.act(ctx, key, set, p)
	return p.again,
		errors.Join(actErr, t.writeStatus(ctx, key, set, statusOf(set, mine, failureOf(p, actErr), time.Now())))
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
	subject := t.source.subject(set)
	_, err := t.control.CreateAll(ctx, key, subject, p.create,
		func(int) *corev1.Pod { return pods.FromTemplate(&set.Spec.Template, set, t.kind) })
	if err != nil {
		return err
	}
	_, err = t.control.DeleteAll(ctx, key, subject, p.delete)
	return err
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

func (t *term) writeStatus(
	ctx context.Context, key runtime.Key, set *appsv1.ReplicaSet, status appsv1.ReplicaSetStatus,
) error {
	status = t.source.status(status)
	return runtime.WriteStatus(ctx, t.loop, key, t.sets, set.Status, status, func() (metav1.Object, error) {
		now := set.DeepCopy()
		now.Status = status
		return t.source.writeStatus(ctx, t.client, now)
	})
}

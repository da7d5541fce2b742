// Package namespace empties terminating namespaces and then releases them: it holds the finalizer
// "kubernetes" of every namespace. The namespace's conditions show the remaining content.
package namespace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/runtime"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	// MetadataFor makes the metadata client of a term: every request of it carries
	// runtime.TermFrom(lead), and ends with lead.
	MetadataFor func(lead context.Context) (metadata.Interface, error)
	Logger      *slog.Logger
	// Workers is how many namespaces are worked on at once. Default 5.
	Workers int
}

// Controller empties namespaces.
type Controller struct {
	cfg        Config
	namespaces cache.SharedIndexInformer
	pods       cache.SharedIndexInformer
	list       corelisters.NamespaceLister
	// discover replaces the client's discovery in tests.
	discover func() ([]*metav1.APIResourceList, error)
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.MetadataFor == nil {
		return nil, errors.New("controllers/namespace: MetadataFor is required")
	}
	if cfg.Workers <= 0 {
		cfg.Workers = 5
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	core := cfg.Informers.Core().V1()
	return &Controller{cfg: cfg, namespaces: core.Namespaces().Informer(), list: core.Namespaces().Lister(),
		pods: core.Pods().Informer()}, nil
}

// Run reconciles for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	meta, err := c.cfg.MetadataFor(ctx)
	if err != nil {
		return fmt.Errorf("making a metadata client: %w", err)
	}
	t := &term{Controller: c, client: client, metadata: meta, discover: c.discover,
		emptySince: map[types.UID]time.Time{}}
	if t.discover == nil {
		t.discover = client.Discovery().ServerPreferredNamespacedResources
	}
	t.loop = runtime.NewLoop("namespace", c.cfg.Workers, c.cfg.Logger, t.reconcile)
	runtime.Watch(t.loop, c.namespaces, func(old, now *corev1.Namespace) []runtime.Key {
		if now == nil || now.DeletionTimestamp == nil {
			return nil
		}
		if old != nil && old.DeletionTimestamp != nil && slices.Equal(old.Spec.Finalizers, now.Spec.Finalizers) {
			return nil // a pass writes its findings to the status, which must not begin another pass
		}
		return []runtime.Key{{Name: now.Name}}
	})
	// Most deletions wait for the end of the last pod.
	runtime.Watch(t.loop, c.pods, func(old, now *corev1.Pod) []runtime.Key {
		if now != nil {
			return nil
		}
		ns, err := c.list.Get(old.Namespace)
		if err != nil || ns.DeletionTimestamp == nil {
			return nil
		}
		return []runtime.Key{{Name: old.Namespace}}
	})
	return t.loop.Run(ctx)
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client   kubernetes.Interface
	metadata metadata.Interface
	discover func() ([]*metav1.APIResourceList, error)
	loop     *runtime.Loop

	mu         sync.Mutex
	emptySince map[types.UID]time.Time
}

// quiet is how long a namespace must have been empty before it is released. Each API server refuses
// new objects from when it has seen that the namespace is Terminating, which takes a moment.
const quiet = time.Second

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	ns, err := t.list.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil || ns.DeletionTimestamp == nil || !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		return 0, err
	}
	if ns.Status.Phase != corev1.NamespaceTerminating {
		// Nothing new may be created from here on: deleted objects would come back.
		if ns, err = t.writeStatus(ctx, key, ns, ns.Status.Conditions); err != nil {
			return 0, err
		}
	}
	r := t.empty(ctx, ns.Name)
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	t.cfg.Logger.Debug("looked into a namespace that is being deleted", "namespace", ns.Name, "remaining",
		len(r.remaining), "finalizers", len(r.finalizers), "content", r.content, "discovery", r.discovery)
	if !r.empty() {
		t.found(ns.UID, false)
	} else if wait := quiet - t.found(ns.UID, true); wait > 0 {
		return wait, nil
	} else {
		return 0, t.finalize(ctx, key, ns)
	}
	_, err = t.writeStatus(ctx, key, ns, conditionsOf(ns.Status.Conditions, r, time.Now()))
	if err == nil {
		err = errors.Join(r.discovery, r.content)
	}
	return patience(time.Since(ns.DeletionTimestamp.Time)), err
}

// found notes how a namespace was found and returns for how long it has been empty.
func (t *term) found(namespace types.UID, empty bool) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	since, known := t.emptySince[namespace]
	switch {
	case !empty:
		delete(t.emptySince, namespace)
	case !known:
		t.emptySince[namespace] = time.Now()
	default:
		return time.Since(since)
	}
	return 0
}

func (t *term) writeStatus(
	ctx context.Context, key runtime.Key, ns *corev1.Namespace, conditions []corev1.NamespaceCondition,
) (*corev1.Namespace, error) {
	next := ns.DeepCopy()
	next.Status.Phase, next.Status.Conditions = corev1.NamespaceTerminating, conditions
	if equality.Semantic.DeepEqual(ns.Status, next.Status) {
		return ns, nil
	}
	next, err := t.client.CoreV1().Namespaces().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("writing the status of namespace %s: %w", ns.Name, err)
	}
	t.loop.Writes().Wrote(key, t.namespaces, next.ResourceVersion)
	return next, nil
}

// finalize takes this controller's finalizer off; the API server deletes the namespace with the
// last one.
func (t *term) finalize(ctx context.Context, key runtime.Key, ns *corev1.Namespace) error {
	next := ns.DeepCopy()
	next.Spec.Finalizers = slices.DeleteFunc(next.Spec.Finalizers,
		func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	_, err := t.client.CoreV1().Namespaces().Finalize(ctx, next, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("finalizing namespace %s: %w", key.Name, err)
	}
	t.found(ns.UID, false) // nothing to remember any more
	return nil
}

// Package podgc removes the pods that no kubelet will remove. These are pods whose Node is gone or
// out of service, pods that were deleted before they got a node, and the oldest finished pods
// beyond a threshold. It is the only controller that deletes without grace.
package podgc

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/pods"
	"github.com/barque/barque/controllers/runtime"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// Finished is how many finished pods the cluster keeps; below 0 is all. Default 12500.
	Finished int
	// Quarantine is how long a Node must be gone before its pods are removed: it may be registering
	// anew. Default 40 s.
	Quarantine time.Duration
}

// Controller removes pods.
type Controller struct {
	cfg       Config
	pods      cache.SharedIndexInformer
	nodes     cache.SharedIndexInformer
	listPods  corelisters.PodLister
	listNodes corelisters.NodeLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.Finished == 0 {
		cfg.Finished = 12500
	}
	if cfg.Quarantine <= 0 {
		cfg.Quarantine = 40 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	core := cfg.Informers.Core().V1()
	c := &Controller{
		cfg:  cfg,
		pods: core.Pods().Informer(), listPods: core.Pods().Lister(),
		nodes: core.Nodes().Informer(), listNodes: core.Nodes().Lister(),
	}
	return c, pods.EnsureNodeIndex(c.pods)
}

// counting is the key under which the finished pods are counted. Pods have a namespace.
var counting = runtime.Key{Name: "finished"}

// Run removes pods for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	t := &term{Controller: c, client: client, gone: map[string]time.Time{}}
	t.loop = runtime.NewLoop("podgc", 4, c.cfg.Logger, t.reconcile)
	runtime.Watch(t.loop, c.nodes, func(old, now *corev1.Node) []runtime.Key {
		switch {
		case now == nil:
			return t.podsOn(old.Name)
		case old == nil:
			t.back(now.Name)
		case outOfService(now) && !outOfService(old):
			return t.podsOn(now.Name)
		}
		return nil
	})
	runtime.Watch(t.loop, c.pods, func(old, now *corev1.Pod) []runtime.Key {
		switch {
		case now == nil:
			return nil
		case pods.Finished(now) && (old == nil || !pods.Finished(old)):
			return []runtime.Key{runtime.KeyOf(now), counting}
		case old == nil, old.Spec.NodeName != now.Spec.NodeName,
			old.DeletionTimestamp == nil && now.DeletionTimestamp != nil:
			return []runtime.Key{runtime.KeyOf(now)}
		}
		return nil
	})
	return t.loop.Run(ctx)
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client kubernetes.Interface
	loop   *runtime.Loop

	mu   sync.Mutex
	gone map[string]time.Time // since when a node is known not to exist
}

func (t *term) podsOn(node string) []runtime.Key {
	onNode, err := pods.OnNode(t.pods, node)
	if err != nil {
		t.cfg.Logger.Error("finding the pods of a node", "node", node, "err", err)
	}
	return pods.Keys(onNode)
}

func (t *term) back(node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.gone, node)
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	if key == counting {
		return 0, t.trim(ctx)
	}
	pod, err := t.listPods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	view, err := t.view(ctx, pod.Spec.NodeName)
	if err != nil {
		return 0, err
	}
	switch what, why := decide(pod, view, t.cfg.Quarantine); what {
	case later:
		return t.cfg.Quarantine - view.goneFor, nil
	case remove:
		return 0, t.remove(ctx, pod, why)
	}
	return 0, nil
}

// view returns the state of a node, from the informer, and otherwise from the API server: a wrong
// answer about a new node would cost its pods.
func (t *term) view(ctx context.Context, name string) (nodeView, error) {
	if name == "" {
		return nodeView{}, nil
	}
	node, err := t.listNodes.Get(name)
	if apierrors.IsNotFound(err) {
		node, err = t.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case apierrors.IsNotFound(err):
		since, known := t.gone[name]
		if !known {
			since = time.Now()
			t.gone[name] = since
		}
		return nodeView{gone: true, goneFor: time.Since(since)}, nil
	case err != nil:
		return nodeView{}, fmt.Errorf("looking for node %s: %w", name, err)
	}
	delete(t.gone, name)
	return nodeView{outOfService: outOfService(node)}, nil
}

func (t *term) trim(ctx context.Context) error {
	if t.cfg.Finished < 0 {
		return nil
	}
	all, err := t.listPods.List(labels.Everything())
	if err != nil {
		return err
	}
	victims := excess(all, t.cfg.Finished)
	return pods.Parallel(len(victims), func(i int) error { return t.delete(ctx, victims[i]) })
}

// remove ends a pod without grace. Its status first records the failure and its reason, so that its
// controller counts it as failed.
func (t *term) remove(ctx context.Context, pod *corev1.Pod, why string) error {
	t.cfg.Logger.Info("removing a pod that no kubelet will remove", "pod", pod.Name, "namespace", pod.Namespace, "node",
		pod.Spec.NodeName, "reason", why)
	if !pods.Finished(pod) && pod.Spec.NodeName != "" {
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": pod.UID},
			"status": map[string]any{"phase": corev1.PodFailed, "conditions": []corev1.PodCondition{{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
				Reason: "DeletionByPodGC", Message: why,
			}}},
		})
		if err != nil {
			return err
		}
		_, err = t.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
			metav1.PatchOptions{}, "status")
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("marking pod %s/%s as failed: %w", pod.Namespace, pod.Name, err)
		}
	}
	return t.delete(ctx, pod)
}

func (t *term) delete(ctx context.Context, pod *corev1.Pod) error {
	now := int64(0)
	err := t.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("removing pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

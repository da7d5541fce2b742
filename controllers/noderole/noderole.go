// Package noderole labels the Nodes of servers as the control plane. A kubelet must not do that
// itself (NodeRestriction forbids it: an attacker on an agent could label it a server). A server is
// known by the member's proven role in gossip.
//
// Labels are only added: an operator's own role labels are left alone.
package noderole

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/runtime"
)

// Label that marks a server's Node.
const Label = "node-role.kubernetes.io/control-plane"

// Servers knows which nodes are servers.
type Servers interface {
	// IsServer reports whether the node is a server; known is false while that cannot be said.
	IsServer(node *corev1.Node) (server, known bool)
}

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Servers   Servers
	Logger    *slog.Logger
}

// Controller adds the label.
type Controller struct {
	cfg   Config
	nodes cache.SharedIndexInformer
	list  corelisters.NodeLister
}

// New asks the factory for the informer it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	nodes := cfg.Informers.Core().V1().Nodes()
	return &Controller{cfg: cfg, nodes: nodes.Informer(), list: nodes.Lister()}, nil
}

// askAgain is when a node is looked at again of which gossip has not heard yet.
const askAgain = time.Second

// Run labels for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	loop := runtime.NewLoop("noderole", 1, c.cfg.Logger,
		func(ctx context.Context, key runtime.Key) (time.Duration, error) {
			return c.reconcile(ctx, client, key.Name)
		})
	runtime.Watch(loop, c.nodes, func(_, now *corev1.Node) []runtime.Key {
		if now == nil || labelled(now) {
			return nil
		}
		return []runtime.Key{{Name: now.Name}}
	})
	return loop.Run(ctx)
}

func (c *Controller) reconcile(ctx context.Context, client kubernetes.Interface, name string) (time.Duration, error) {
	node, err := c.list.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil || labelled(node) {
		return 0, err
	}
	server, known := c.cfg.Servers.IsServer(node)
	if !known {
		return askAgain, nil
	}
	if !server {
		return 0, nil
	}
	patch := []byte(`{"metadata":{"labels":{"` + Label + `":""}}}`)
	_, err = client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return 0, err
}

func labelled(node *corev1.Node) bool {
	_, ok := node.Labels[Label]
	return ok
}

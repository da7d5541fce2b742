// Package nodeipam gives every Node its block of pod addresses, cut from the cluster's CIDRs.
//
// A block belongs to one Node, for as long as the Node object exists. One goroutine hands out the
// blocks. It starts a term by reading the Nodes from the API server. It remembers each block until
// its informer shows it.
//
// When no block is free, Nodes wait for the removal of another Node. A waiting Node gets one event
// in a term, and costs no search of the ranges and no attempt.
package nodeipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
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
	"k8s.io/client-go/tools/record"

	"github.com/barque/barque/controllers/runtime"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// ClusterCIDRs are the ranges to cut from: one, or one of each family.
	ClusterCIDRs []netip.Prefix
	// NodeBits4 and NodeBits6 are the prefix lengths of a Node's blocks. Defaults 24 and 64.
	NodeBits4, NodeBits6 int
}

// Controller assigns pod CIDRs.
type Controller struct {
	cfg   Config
	nodes cache.SharedIndexInformer
	list  corelisters.NodeLister
}

// New asks the factory for the informer it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.NodeBits4 == 0 {
		cfg.NodeBits4 = 24
	}
	if cfg.NodeBits6 == 0 {
		cfg.NodeBits6 = 64
	}
	if len(cfg.ClusterCIDRs) == 0 {
		return nil, errors.New("controllers/nodeipam: no cluster CIDR")
	}
	cfg.ClusterCIDRs = slices.Clone(cfg.ClusterCIDRs)
	for i, p := range cfg.ClusterCIDRs {
		bits := blockBits(cfg, p)
		if !p.IsValid() || bits < p.Bits() || bits > p.Addr().BitLen() || bits-p.Bits() > 16 {
			return nil,
				fmt.Errorf(
					"controllers/nodeipam: cannot cut blocks of /%d from cluster CIDR %s: it must be larger by at most 16 bits", bits, p)
		}
		cfg.ClusterCIDRs[i] = p.Masked()
	}
	nodes := cfg.Informers.Core().V1().Nodes()
	return &Controller{cfg: cfg, nodes: nodes.Informer(), list: nodes.Lister()}, nil
}

func blockBits(cfg Config, p netip.Prefix) int {
	if p.Addr().Is4() {
		return cfg.NodeBits4
	}
	return cfg.NodeBits6
}

// Run assigns for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	live, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("reading the nodes' pod CIDRs: %w", err)
	}
	recorder, stop := runtime.Recorder(ctx, client, "cidrAllocator")
	defer stop()
	t := &term{Controller: c, client: client, recorder: recorder, given: map[string]given{},
		waiting: map[string]types.UID{}}
	for i := range live.Items {
		if node := &live.Items[i]; len(node.Spec.PodCIDRs) > 0 {
			t.given[node.Name] = given{uid: node.UID, blocks: node.Spec.PodCIDRs}
		}
	}
	// One worker: see the package's comment.
	loop := runtime.NewLoop("nodeipam", 1, c.cfg.Logger, t.reconcile)
	t.wake = loop.Add
	runtime.Watch(loop, c.nodes, func(old, now *corev1.Node) []runtime.Key {
		if now == nil {
			return []runtime.Key{{Name: old.Name}}
		}
		if old != nil && len(now.Spec.PodCIDRs) > 0 && len(old.Spec.PodCIDRs) > 0 {
			return nil
		}
		return []runtime.Key{{Name: now.Name}}
	})
	return loop.Run(ctx)
}

type term struct {
	*Controller
	client   kubernetes.Interface
	recorder record.EventRecorder
	wake     func(...runtime.Key)

	// The one worker alone uses the fields below.
	given   map[string]given     // by node name
	waiting map[string]types.UID // Nodes without a free block, by name; each has its event
	full    bool                 // the last search found no block, and no Node has gone since
}

// given is the block of a Node.
type given struct {
	uid    types.UID
	blocks []string
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	node, err := t.list.Get(key.Name)
	if apierrors.IsNotFound(err) {
		t.gone(key.Name)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if g, ok := t.given[node.Name]; ok && g.uid != node.UID {
		t.gone(node.Name) // a Node of the same name has taken its place
	}
	if len(node.Spec.PodCIDRs) > 0 {
		t.given[node.Name] = given{uid: node.UID, blocks: node.Spec.PodCIDRs}
		delete(t.waiting, node.Name)
		return 0, nil
	}
	if _, ok := t.given[node.Name]; ok {
		return time.Second, nil // written; the informer will show it
	}
	if t.full {
		t.wait(node)
		return 0, nil
	}
	used, err := t.used()
	if err != nil {
		return 0, err
	}
	blocks := make([]string, 0, len(t.cfg.ClusterCIDRs))
	for _, cluster := range t.cfg.ClusterCIDRs {
		block, ok := free(cluster, blockBits(t.cfg, cluster), used)
		if !ok {
			t.full = true
			t.cfg.Logger.Warn(
				"no block of pod addresses is free: nodes without one wait until another Node is removed; "+
					"remove Node objects of machines that are gone, or use a larger cluster CIDR", "cidr", cluster,
				"node",
				node.Name)
			t.wait(node)
			return 0, nil
		}
		blocks = append(blocks, block.String())
	}
	return 0, t.assign(ctx, node, blocks)
}

// wait notes that a Node has no block, and says so once.
func (t *term) wait(node *corev1.Node) {
	if t.waiting[node.Name] == node.UID {
		return
	}
	t.waiting[node.Name] = node.UID
	t.recorder.Eventf(node, corev1.EventTypeWarning, "CIDRNotAvailable", "No free block of pod addresses in %s",
		strings.Join(texts(t.cfg.ClusterCIDRs), ","))
}

func texts(prefixes []netip.Prefix) []string {
	var out []string
	for _, p := range prefixes {
		out = append(out, p.String())
	}
	return out
}

// gone forgets a Node, and has the waiting ones looked at again. The Node may have had a block that
// this term has never seen.
func (t *term) gone(name string) {
	delete(t.waiting, name)
	delete(t.given, name)
	t.full = false
	for other := range t.waiting {
		t.wake(runtime.Key{Name: other})
	}
}

// used returns every block that some Node has, by the informer or by this term's memory.
func (t *term) used() ([]netip.Prefix, error) {
	nodes, err := t.list.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	var used []netip.Prefix
	add := func(blocks []string) {
		for _, s := range blocks {
			if p, err := netip.ParsePrefix(s); err == nil {
				used = append(used, p)
			}
		}
	}
	for _, node := range nodes {
		add(node.Spec.PodCIDRs)
	}
	for _, g := range t.given {
		add(g.blocks)
	}
	return used, nil
}

func (t *term) assign(ctx context.Context, node *corev1.Node, blocks []string) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"spec":     map[string]any{"podCIDR": blocks[0], "podCIDRs": blocks},
	})
	if err != nil {
		return err
	}
	if _, err := t.client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("assigning pod CIDRs %v to node %s: %w", blocks, node.Name, err)
	}
	t.given[node.Name] = given{uid: node.UID, blocks: blocks}
	delete(t.waiting, node.Name)
	return nil
}

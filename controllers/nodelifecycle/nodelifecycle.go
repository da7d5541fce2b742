package nodelifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/node/topology"

	"github.com/barque/barque/controllers/pods"
	"github.com/barque/barque/controllers/runtime"
)

// askedAtOnce bounds the concurrent checks of nodes. With this many dead nodes, each probe waiting
// for its time-out, the others are still checked in time.
const askedAtOnce = 64

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Liveness  Liveness
	Settings  Settings
	// MemberLabel is on the leases that are made from gossip. They are not watched.
	MemberLabel string
	Logger      *slog.Logger
}

// Controller watches over nodes.
type Controller struct {
	cfg    Config
	nodes  cache.SharedIndexInformer
	pods   cache.SharedIndexInformer
	leases cache.SharedIndexInformer // of foreign nodes
	list   corelisters.NodeLister
	words  *words
	since  time.Time // when this process began to listen

	sightings *sightings
	arrivals  *arrivals
}

// New asks the factory for the informers it needs; it is called before they are started, and when
// Liveness begins to listen.
func New(cfg Config) (*Controller, error) {
	if cfg.Liveness == nil {
		return nil, errors.New("controllers/nodelifecycle: Liveness is required")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Settings = cfg.Settings.withDefaults()
	core := cfg.Informers.Core().V1()
	c := &Controller{cfg: cfg, nodes: core.Nodes().Informer(), list: core.Nodes().Lister(),
		pods: core.Pods().Informer(), leases: foreignLeases(cfg), words: newWords(), since: time.Now(),
		sightings: newSightings(), arrivals: newArrivals()}
	if err := errors.Join(c.words.listen(c.nodes), c.sightings.listen(c.nodes), c.arrivals.listen(c.pods)); err != nil {
		return nil, err
	}
	return c, pods.EnsureNodeIndex(c.pods)
}

// Run watches for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, "node-controller")
	defer stop()
	t := &term{
		Controller: c, client: client, recorder: recorder,
		memory: newMemory(c.words, c.since, time.Now()), budgets: map[string]*budget{},
	}
	t.loop = runtime.NewLoop("nodelifecycle", askedAtOnce, c.cfg.Logger, t.reconcile)
	runtime.Watch(t.loop, c.nodes, func(old, now *corev1.Node) []runtime.Key {
		if now == nil {
			t.memory.forget(old.Name)
			return nil
		}
		return []runtime.Key{{Name: now.Name}}
	})
	runtime.Watch(t.loop, c.leases, func(_, now *coordinationv1.Lease) []runtime.Key {
		if now != nil {
			t.memory.renew(now, time.Now())
		}
		return nil // the node is looked at when its grace could be over
	})
	t.replacer = newReplacer(t)
	e := newEvictor(c, client, recorder)

	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { t.followLiveness(ctx) })
	ended := make(chan error, 2)
	for _, loop := range []*runtime.Loop{t.replacer.loop, e.loop} {
		wg.Go(func() { ended <- loop.Run(ctx); cancel() })
	}
	err := t.loop.Run(ctx)
	cancel()
	return errors.Join(err, <-ended, <-ended)
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client   kubernetes.Interface
	recorder record.EventRecorder
	loop     *runtime.Loop
	replacer *replacer
	memory   *memory

	mu      sync.Mutex
	budgets map[string]*budget // of evicting taints, by zone
	zones   map[string]nodeCounts
	counted time.Time
}

// followLiveness reconciles a node as soon as Liveness changes its state.
func (t *term) followLiveness(ctx context.Context) {
	type opinion struct {
		life  Life
		known bool
	}
	before := map[string]opinion{}
	for {
		changed := t.cfg.Liveness.Changed()
		nodes, err := t.list.List(labels.Everything())
		if err != nil {
			t.cfg.Logger.Error("listing nodes", "err", err)
		}
		now := make(map[string]opinion, len(nodes))
		for _, node := range nodes {
			life, known := t.cfg.Liveness.Life(node.Name)
			now[node.Name] = opinion{life, known}
			if was, seen := before[node.Name]; !seen || was != now[node.Name] {
				t.loop.Add(runtime.Key{Name: node.Name})
			}
		}
		before = now
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// reconcile checks one node, and again after the period: deadlines pass without an event.
func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	node, err := t.list.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	j, err := t.judge(ctx, node)
	if ctx.Err() != nil {
		return 0, context.Cause(ctx) // a probe failed because the term is over
	}
	if err != nil {
		return 0, err
	}
	now := time.Now()
	t.note(node.Name, j)
	switch {
	case j.unknown:
		node, err = t.markUnknown(ctx, node, now)
	case j.ill:
		node, err = t.markIll(ctx, node, now)
	}
	if err != nil {
		return 0, err
	}
	if err := t.taint(ctx, node, j.unreachable, now); err != nil {
		return 0, err
	}
	if j.unreachable {
		if err := t.replacer.look(node.Name); err != nil {
			return 0, err
		}
	}
	if statusOf(node, corev1.NodeReady) == corev1.ConditionUnknown {
		if err := t.markPods(ctx, node); err != nil {
			return 0, err
		}
	}
	return j.again, nil
}

// judge probes the node when the evidence is not enough. For a foreign node it reads the lease from
// the store.
func (t *term) judge(ctx context.Context, node *corev1.Node) (judgement, error) {
	if !t.cfg.Liveness.Member(node) {
		return t.judgeForeign(ctx, node)
	}
	return t.judgeMember(ctx, node), nil
}

func (t *term) judgeMember(ctx context.Context, node *corev1.Node) judgement {
	now := time.Now()
	life, heardOf := t.cfg.Liveness.Life(node.Name)
	e := t.memory.evidence(node, life, heardOf, now)
	j := judge(e, t.cfg.Settings, now)
	if !j.probe {
		return j
	}
	e.probed, e.answered = true, t.answers(ctx, node)
	e.life, e.heardOf = t.cfg.Liveness.Life(node.Name) // it may have been heard of meanwhile
	if now = time.Now(); e.answered {
		t.cfg.Logger.Info("node is silent but answers when asked", "node", node.Name, "silent",
			now.Sub(e.silentSince).Round(time.Millisecond))
		t.memory.answered(node.Name, now)
	}
	return judge(e, t.cfg.Settings, now)
}

// note logs a change that is not in the node's conditions yet.
func (t *term) note(node string, j judgement) {
	switch was := t.memory.setUnreachable(node, j.unreachable); {
	case j.unreachable && !was:
		t.cfg.Logger.Warn("node is unreachable: it gets no new pods", "node", node)
	case was && !j.unreachable:
		t.cfg.Logger.Info("node is reachable again", "node", node)
	}
}

// answers asks the node itself, if it is a member.
func (c *Controller) answers(ctx context.Context, node *corev1.Node) bool {
	if !c.cfg.Liveness.Member(node) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Settings.ConfirmTimeout)
	defer cancel()
	return c.cfg.Liveness.Confirm(ctx, node)
}

func (t *term) markUnknown(ctx context.Context, node *corev1.Node, now time.Time) (*corev1.Node, error) {
	conditions, changed := markUnknown(node.Status, now)
	if !changed {
		return node, nil
	}
	t.cfg.Logger.Warn("node is without life: marked Unknown", "node", node.Name)
	return t.mark(ctx, node, conditions)
}

func (t *term) markIll(ctx context.Context, node *corev1.Node, now time.Time) (*corev1.Node, error) {
	life, _ := t.cfg.Liveness.Life(node.Name)
	conditions, changed := markIll(node.Status, life.Ill, now)
	if !changed || life.Ill == "" {
		return node, nil
	}
	t.cfg.Logger.Warn("node says that it is ill: marked as not ready", "node", node.Name, "ill", life.Ill)
	return t.mark(ctx, node, conditions)
}

// mark writes the conditions of a node that is not ready by them.
func (t *term) mark(ctx context.Context, node *corev1.Node, conditions []corev1.NodeCondition) (*corev1.Node, error) {
	next := node.DeepCopy()
	next.Status.Conditions = conditions
	next, err := t.client.CoreV1().Nodes().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil,
			fmt.Errorf("marking node %s as %s: %w", node.Name,
				statusOf(&corev1.Node{Status: corev1.NodeStatus{Conditions: conditions}}, corev1.NodeReady), err)
	}
	t.loop.Writes().Wrote(runtime.Key{Name: node.Name}, t.nodes, next.ResourceVersion)
	t.recorder.Eventf(node, corev1.EventTypeNormal, "NodeNotReady", "Node %s status is now: NodeNotReady", node.Name)
	return next, nil
}

// taint makes the node's taints follow its conditions, and whether it is unreachable.
func (t *term) taint(ctx context.Context, node *corev1.Node, unreachable bool, now time.Time) error {
	zones := t.countZones(now)
	zone := topology.GetZoneKey(node)
	taints := taintsOf(node, unreachable, func() bool { return t.mayEvict(zone, zones[zone], now) }, allGone(zones),
		now)
	if equality.Semantic.DeepEqual(taints, node.Spec.Taints) {
		return nil
	}
	next := node.DeepCopy()
	next.Spec.Taints = taints
	next, err := t.client.CoreV1().Nodes().Update(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("tainting node %s: %w", node.Name, err)
	}
	t.loop.Writes().Wrote(runtime.Key{Name: node.Name}, t.nodes, next.ResourceVersion)
	return nil
}

func (t *term) mayEvict(zone string, c nodeCounts, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.budgets[zone]
	if b == nil {
		b = &budget{}
		t.budgets[zone] = b
	}
	return b.take(c.rate(t.cfg.Settings), now)
}

// countZones counts the nodes of every zone, at most once a second. A node that gossip misses, or
// has not heard in time, counts as gone before it is marked. Otherwise the first of many would be
// evicted as if it were the only one.
func (t *term) countZones(now time.Time) map[string]nodeCounts {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.zones != nil && now.Sub(t.counted) < time.Second {
		return maps.Clone(t.zones)
	}
	nodes, err := t.list.List(labels.Everything())
	if err != nil {
		return maps.Clone(t.zones)
	}
	zones := map[string]nodeCounts{}
	for _, node := range nodes {
		zone := topology.GetZoneKey(node)
		zones[zone] = zones[zone].with(t.health(node, now))
	}
	t.zones, t.counted = zones, now
	return maps.Clone(zones)
}

// health is how a node counts in its zone.
func (t *term) health(node *corev1.Node, now time.Time) nodeHealth {
	if statusOf(node, corev1.NodeReady) != corev1.ConditionTrue {
		return gone
	}
	if !t.cfg.Liveness.Member(node) {
		return foreignHealth(t.memory.foreign(node, now), t.cfg.Settings, now)
	}
	switch life, heardOf := t.cfg.Liveness.Life(node.Name); {
	case heardOf && life.State == Alive:
		return ready
	case !heardOf && now.Sub(t.memory.unheardSince(node)) < t.cfg.Settings.StartupGrace/2:
		return unheard
	}
	return gone
}

// markPods marks the pods of a silent node as not ready, because its kubelet cannot. The kubelet
// marks them as ready when it is back.
func (t *term) markPods(ctx context.Context, node *corev1.Node) error {
	onNode, err := pods.OnNode(t.pods, node.Name)
	if err != nil {
		return err
	}
	onNode = slices.DeleteFunc(onNode, func(p *corev1.Pod) bool { return !pods.Ready(p) })
	return pods.Parallel(len(onNode), func(i int) error {
		pod := onNode[i].DeepCopy()
		c := pods.Condition(pod, corev1.PodReady)
		c.Status, c.LastTransitionTime = corev1.ConditionFalse, metav1.Now()
		c.Reason, c.Message = "NodeNotReady", "The pod's node is without life."
		pod, err := t.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return fmt.Errorf("marking pod %s as not ready: %w", onNode[i].Name, err)
		}
		t.loop.Writes().Wrote(runtime.Key{Name: node.Name}, t.pods, pod.ResourceVersion)
		return nil
	})
}

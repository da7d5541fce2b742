package cache

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/barque/barque/scheduler/framework"
)

// Cache is safe for concurrent use.
//
// The states of a pod in the cache:
//
//	            Assume            FinishBinding
//	unknown ─────────────▶ assumed ──────────────▶ assumed with a deadline
//	   │  ▲                 │  │                      │   │
//	   │  └─── Forget ──────┘  └───── AddPod ────┐    │   └─ deadline passes ─▶ unknown
//	   │                                         ▼    │
//	   └──────────────── AddPod ──────────────▶ bound ◀┘ AddPod
//	                                             │
//	                                             └──── RemovePod ─▶ unknown
type Cache struct {
	clock clock.PassiveClock
	ttl   time.Duration

	mu         sync.Mutex
	generation int64
	nodes      map[string]*entry
	// newest heads a list of all entries, most recently changed first.
	newest *entry
	pods   map[types.UID]*podState
	images map[string]map[string]struct{} // image name → nodes that have it
	// layout changes when a node comes, goes or moves to another zone.
	layout int64
	// assumed are the pods that are not confirmed.
	assumed map[types.UID]*podState
	// nextExpiry is not after the first deadline of them; zero when there is none.
	nextExpiry time.Time
}

type entry struct {
	name       string
	info       *framework.NodeInfo
	prev, next *entry
}

type podState struct {
	info     *framework.PodInfo
	assumed  bool
	deadline time.Time // of an assumed pod whose binding has finished; zero before
}

// New returns an empty cache. Assumed pods expire ttl after FinishBinding.
func New(clock clock.PassiveClock, ttl time.Duration) *Cache {
	return &Cache{
		clock:   clock,
		ttl:     ttl,
		nodes:   map[string]*entry{},
		pods:    map[types.UID]*podState{},
		images:  map[string]map[string]struct{}{},
		assumed: map[types.UID]*podState{},
	}
}

// Assume counts a pod on the node that was chosen for it (its spec.nodeName). It fails when the
// pod is already counted.
func (c *Cache) Assume(p *framework.PodInfo) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	pod := p.GetPod()
	if old := c.pods[pod.UID]; old != nil {
		return fmt.Errorf("pod %s/%s is already on node %q", pod.Namespace, pod.Name, old.info.GetPod().Spec.NodeName)
	}
	c.add(&podState{info: p, assumed: true})
	return nil
}

// FinishBinding starts the deadline after which an unconfirmed assumed pod is dropped.
func (c *Cache) FinishBinding(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.assumed[uid]
	if p == nil {
		return
	}
	p.deadline = c.clock.Now().Add(c.ttl)
	if c.nextExpiry.IsZero() {
		c.nextExpiry = p.deadline
	}
}

// Forget drops an assumed pod. It reports whether the pod was assumed: a confirmed pod stays.
func (c *Cache) Forget(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.assumed[uid]
	if p == nil {
		return false
	}
	c.remove(p)
	return true
}

// Expire drops the assumed pods whose deadline has passed and returns them.
func (c *Cache) Expire() []*v1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	if c.nextExpiry.IsZero() || !now.After(c.nextExpiry) {
		return nil
	}
	c.nextExpiry = time.Time{}
	var out []*v1.Pod
	for _, p := range c.assumed {
		switch {
		case p.deadline.IsZero():
		case now.After(p.deadline):
			out = append(out, p.info.GetPod())
			c.remove(p)
		case c.nextExpiry.IsZero() || p.deadline.Before(c.nextExpiry):
			c.nextExpiry = p.deadline
		}
	}
	return out
}

// AddPod counts a pod on the node that an informer shows, or updates it. It ends an assumption
// about the pod, right or wrong.
func (c *Cache) AddPod(p *framework.PodInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.pods[p.GetPod().UID]; old != nil {
		c.remove(old)
	}
	c.add(&podState{info: p})
}

// RemovePod removes a pod that no longer occupies its node.
func (c *Cache) RemovePod(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[uid]; p != nil {
		c.remove(p)
	}
}

// Has reports whether the pod is counted somewhere.
func (c *Cache) Has(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pods[uid] != nil
}

// Assumed returns how many pods are decided and not confirmed.
func (c *Cache) Assumed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.assumed)
}

func (c *Cache) add(p *podState) {
	pod := p.info.GetPod()
	c.pods[pod.UID] = p
	if p.assumed {
		c.assumed[pod.UID] = p
	}
	e := c.entry(pod.Spec.NodeName)
	e.info.AddPodInfo(p.info)
	c.touch(e)
}

func (c *Cache) remove(p *podState) {
	pod := p.info.GetPod()
	delete(c.pods, pod.UID)
	delete(c.assumed, pod.UID)
	e := c.entry(pod.Spec.NodeName)
	if err := e.info.RemovePod(klog.Logger{}, pod); err != nil {
		// pods and nodes are changed together under one lock; only a fault here gets them apart.
		panic(err)
	}
	c.touch(e)
	c.dropIfEmpty(e)
}

// SetNode adds a node or replaces it.
func (c *Cache) SetNode(node *v1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entry(node.Name)
	old := e.info.Node()
	if old == nil || zoneOf(old) != zoneOf(node) {
		c.layout++
	}
	c.setImages(e, old, node)
	e.info.SetNode(node)
	c.touch(e)
}

// RemoveNode removes a node. Its pods stay counted until they are removed, so that the node is not
// empty when it comes back.
func (c *Cache) RemoveNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.nodes[name]
	if e == nil || e.info.Node() == nil {
		return
	}
	c.layout++
	c.setImages(e, e.info.Node(), nil)
	e.info.ForgetNode()
	c.touch(e)
	c.dropIfEmpty(e)
}

func (c *Cache) entry(name string) *entry {
	e := c.nodes[name]
	if e == nil {
		e = &entry{name: name, info: framework.NewNodeInfo()}
		c.nodes[name] = e
	}
	return e
}

// dropIfEmpty forgets a name that neither a node nor a pod uses.
func (c *Cache) dropIfEmpty(e *entry) {
	if e.info.Node() != nil || len(e.info.GetPods()) > 0 {
		return
	}
	c.unlink(e)
	delete(c.nodes, e.name)
}

// touch stamps the entry with the next generation and moves it to the front.
func (c *Cache) touch(e *entry) {
	c.generation++
	e.info.SetGeneration(c.generation)
	if c.newest == e {
		return
	}
	c.unlink(e)
	e.next = c.newest
	if c.newest != nil {
		c.newest.prev = e
	}
	c.newest = e
}

func (c *Cache) unlink(e *entry) {
	if e.prev != nil {
		e.prev.next = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	}
	if c.newest == e {
		c.newest = e.next
	}
	e.prev, e.next = nil, nil
}

// Len returns how many nodes and pods there are, and how many of the pods are assumed.
func (c *Cache) Len() (nodes, pods, assumed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.nodes), len(c.pods), len(c.assumed)
}

// NodeSummary has a node's allocatable resources and the requests of its pods.
type NodeSummary struct {
	Name                   string
	Pods, Assumed          int
	Requested, Allocatable framework.Resource
}

// Nodes returns a summary of each node, in the order of their names.
func (c *Cache) Nodes() []NodeSummary {
	c.mu.Lock()
	defer c.mu.Unlock()
	assumed := map[string]int{}
	for _, p := range c.assumed {
		assumed[p.info.GetPod().Spec.NodeName]++
	}
	out := make([]NodeSummary, 0, len(c.nodes))
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		info := c.nodes[name].info
		s := NodeSummary{Name: name, Pods: len(info.GetPods()), Assumed: assumed[name]}
		if r, ok := info.GetRequested().(*framework.Resource); ok {
			s.Requested = *r
		}
		if r, ok := info.GetAllocatable().(*framework.Resource); ok {
			s.Allocatable = *r
		}
		out = append(out, s)
	}
	return out
}

package resourcemetrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// How nodes are sampled.
const (
	Period = 15 * time.Second
	// First is the time between the first two samples of a node.
	First = 2 * time.Second
	// Timeout bounds the answer of one kubelet.
	Timeout = 5 * time.Second
	// Concurrency bounds the concurrent requests to kubelets.
	Concurrency = 64
	// again bounds the requests to nodes that have failed last, so that any number of them leaves
	// room for those that answer.
	again = 8
	// Patience bounds how long the first request waits for the first figures.
	Patience = 6 * time.Second
	// Stale is the age from which figures are not given any more.
	Stale = 3 * Period
	// Idle is how long after the last request the collection ends.
	Idle = 5 * time.Minute
	// nodesEvery is how soon a node that has come is sampled, and one that has gone is not.
	nodesEvery = 2 * time.Second
	// maxAnswer bounds the answer of one kubelet: some 200 bytes for each of 6 metrics of a
	// container.
	maxAnswer = 16 << 20
)

// path is the kubelets' path of resource metrics.
const path = "/metrics/resource"

// Kubelets sends requests to the kubelets of nodes.
type Kubelets interface {
	// Get sends a request to the kubelet of a node. The caller closes the body.
	Get(ctx context.Context, node *corev1.Node, path string) (*http.Response, error)
}

// Config of a Collector.
type Config struct {
	Kubelets Kubelets
	// Nodes lists the nodes. They belong to the caller.
	Nodes  func() ([]*corev1.Node, error)
	Logger *slog.Logger
}

// Collector samples the nodes while there are requests. Make it with New and Close it.
type Collector struct {
	cfg  Config
	life context.Context
	end  context.CancelFunc
	work sync.WaitGroup // everything that was started

	mu     sync.Mutex
	asked  time.Time
	run    *run // nil while there are no requests
	closed bool
}

// run is one collection, from the first request to Idle after the last one.
type run struct {
	began time.Time
	stop  context.CancelFunc
	slots chan struct{} // of nodes that have answered, or are new
	again chan struct{} // of nodes that have failed last
	warm  chan struct{} // closed when the first figures are there

	// These are the Collector's mu's.
	nodes map[string]*sampled
	cold  bool // warm is open
}

// sampled is a node of a run.
type sampled struct {
	node  *corev1.Node // as it was last listed
	state state
	tried int // samples that were requested and answered, or failed
	bad   bool
	stop  context.CancelFunc
}

// New makes a Collector, which does nothing yet.
func New(cfg Config) (*Collector, error) {
	if cfg.Kubelets == nil || cfg.Nodes == nil {
		return nil, errors.New("resourcemetrics: Kubelets and Nodes are required")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Collector{cfg: cfg}
	c.life, c.end = context.WithCancel(context.Background())
	return c, nil
}

// Close ends the collection, and waits for it.
func (c *Collector) Close() {
	c.end()
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.work.Wait()
}

// await notes a request, and returns when there is an answer, or no reason to wait longer.
func (c *Collector) await(ctx context.Context) error {
	c.mu.Lock()
	c.asked = time.Now()
	if c.run == nil && !c.closed {
		c.start()
	}
	r := c.run
	c.mu.Unlock()
	if r == nil {
		return nil
	}
	select {
	case <-r.warm:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(Patience - time.Since(r.began)):
		return nil
	case <-c.life.Done():
		return nil
	}
}

// start begins a run, which ends by itself or with the Collector. mu is held.
func (c *Collector) start() {
	ctx, stop := context.WithCancel(c.life)
	r := &run{began: time.Now(), stop: stop, slots: make(chan struct{}, Concurrency-again),
		again: make(chan struct{}, again), warm: make(chan struct{}), nodes: map[string]*sampled{}, cold: true}
	c.run = r
	c.follow(ctx, r)
	c.work.Go(func() { // ends with ctx at the latest, and with it all that samples
		defer stop()
		ticker := time.NewTicker(nodesEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			c.mu.Lock()
			if time.Since(c.asked) > Idle {
				c.run = nil
				c.mu.Unlock()
				return
			}
			c.follow(ctx, r)
			c.mu.Unlock()
		}
	})
}

// follow begins to sample nodes that have come, and ends it for those that have gone. mu is held.
func (c *Collector) follow(ctx context.Context, r *run) {
	nodes, err := c.cfg.Nodes()
	if err != nil {
		c.cfg.Logger.Warn("cannot list the nodes to be sampled", "err", err)
		return
	}
	listed := make(map[string]bool, len(nodes))
	for _, node := range nodes {
		listed[node.Name] = true
		if n := r.nodes[node.Name]; n != nil {
			n.node = node
			continue
		}
		ctx, stop := context.WithCancel(ctx)
		n := &sampled{node: node, stop: stop}
		r.nodes[node.Name] = n
		c.work.Go(func() { // ends when the node goes, or with the run
			defer stop()
			c.watch(ctx, r, n)
		})
	}
	for name, n := range r.nodes {
		if !listed[name] {
			n.stop()
			delete(r.nodes, name)
		}
	}
	r.settle()
}

// settle closes warm when nothing more is to come soon. mu is held.
func (r *run) settle() {
	if !r.cold {
		return
	}
	for _, n := range r.nodes {
		if n.tried < 2 && !n.bad {
			return
		}
	}
	r.cold = false
	close(r.warm)
}

// watch samples one node until ctx ends.
func (c *Collector) watch(ctx context.Context, r *run, n *sampled) {
	// Later samples of many nodes are spread over the period.
	spread := Period/3 + rand.N(2*Period/3)
	for look := 0; ; look++ {
		began, pause := time.Now(), Period
		switch look {
		case 0:
			pause = First
		case 1:
			pause = spread
		}
		slots := r.slots
		c.mu.Lock()
		if n.bad {
			slots = r.again
		}
		c.mu.Unlock()
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		c.mu.Lock()
		node := n.node
		c.mu.Unlock()
		next, err := c.sample(ctx, node)
		<-slots
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		n.tried++
		changed := n.bad != (err != nil)
		n.bad = err != nil
		if err == nil {
			n.state = n.state.advance(next, time.Now())
		}
		r.settle()
		c.mu.Unlock()
		if changed {
			c.tell(node.Name, err)
		}
		select {
		case <-time.After(pause - time.Since(began)):
		case <-ctx.Done():
			return
		}
	}
}

func (c *Collector) tell(node string, err error) {
	if err != nil {
		c.cfg.Logger.Warn("a kubelet does not tell what its node uses: kubectl top and autoscalers do without", "node",
			node, "err", err)
		return
	}
	c.cfg.Logger.Info("a kubelet tells again what its node uses", "node", node)
}

// sample reads one kubelet's metrics.
func (c *Collector) sample(ctx context.Context, node *corev1.Node) (*sample, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, Timeout, fmt.Errorf("no answer within %s", Timeout))
	defer cancel()
	answer, err := c.cfg.Kubelets.Get(ctx, node, path)
	if err != nil {
		return nil, explain(ctx, err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, explain(ctx, err)
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %s: %.200s", path, answer.Status, body)
	case len(body) > maxAnswer:
		return nil, fmt.Errorf("%s: the answer is larger than %d bytes", path, maxAnswer)
	}
	return parse(body, time.Now())
}

// explain adds that the time-out was the cause, if it was.
func explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// nodeUsage returns the usage of a node, nil when it is not known.
func (c *Collector) nodeUsage(name string) *usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.current(name); s != nil {
		return s.node.usage
	}
	return nil
}

// containerUsage is the usage of one container.
type containerUsage struct {
	name string
	usage
}

// podUsage returns the usage of a pod's containers, nothing when it is not known of each of them.
func (c *Collector) podUsage(node string, pod types.NamespacedName) []containerUsage {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.current(node)
	if s == nil {
		return nil
	}
	var out []containerUsage
	for name, e := range s.pods[pod] {
		if e.usage == nil {
			return nil
		}
		out = append(out, containerUsage{name, *e.usage})
	}
	return out
}

// current returns the state of a node that has answered lately. mu is held.
func (c *Collector) current(node string) *state {
	if c.run == nil {
		return nil
	}
	n := c.run.nodes[node]
	if n == nil || n.state.heard.IsZero() || time.Since(n.state.heard) > Stale {
		return nil
	}
	return &n.state
}

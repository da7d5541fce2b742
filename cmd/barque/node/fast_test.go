package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/barque/barque/apiserver/nodeleases"
	"github.com/barque/barque/cmd/barque/node/adapters"
	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/nodelifecycle"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/liveness"
	"github.com/barque/barque/membership/pulse"
)

// bigCluster is a thousand nodes on a bad network, in the leader's view. The pulse, the evidence
// and the node controller are real, with the times of --fast-failure-detection; the nodes and the
// network are not. Gossip is the worst possible: it misses deaths, and calls living nodes dead.
type bigCluster struct {
	*controllertest.Cluster
	t    *testing.T
	loss float64 // of packets, each way

	mu      sync.Mutex
	rnd     *rand.Rand
	learns  bool // gossip learns of deaths, and of its errors
	nodes   map[string]*bigNode
	changed chan struct{} // of gossip
}

type bigNode struct {
	killed  time.Time
	unknown time.Time
	paused  time.Time // until when
	pauses  int
	told    time.Time // when gossip learns its state, if it does not know it
	member  gossip.Member
}

var errNoAnswer = errors.New("no answer")

const roundTrip = time.Millisecond

func (c *bigCluster) Member(name string) (gossip.Member, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.nodes[name]
	if !ok {
		return gossip.Member{}, false
	}
	return n.member, true
}

func (c *bigCluster) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Silent: the nodes are agents, which the store does not know.
func (c *bigCluster) Silent() ([]liveness.SilentServer, <-chan struct{}) { return nil, nil }

// answer returns how long a node's process takes to answer, its share of lost round trips each
// costing as much as given, and false if it never does.
func (c *bigCluster) answer(name string, costs ...time.Duration) (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[name]
	if !n.killed.IsZero() {
		return 0, false
	}
	took := max(roundTrip, time.Until(n.paused))
	for _, cost := range costs {
		for c.lost(2) { // there and back
			took += cost
		}
	}
	return took, true
}

// lost draws whether any of so many packets is. The caller holds the lock.
func (c *bigCluster) lost(packets int) bool {
	for range packets {
		if c.rnd.Float64() < c.loss {
			return true
		}
	}
	return false
}

// ask is one packet of gossip and its answer.
func (c *bigCluster) ask(name string) error {
	took, alive := c.answer(name, time.Hour)
	if !alive || took > liveness.PulsePatience {
		time.Sleep(liveness.PulsePatience)
		return errNoAnswer
	}
	time.Sleep(took)
	return nil
}

// evidenceOf is the evidence with another probe of a kubelet: a TCP connection, whose first packet
// is retransmitted after a second and others after a fifth of that.
type evidenceOf struct {
	adapters.Liveness
	cluster *bigCluster
}

func (e evidenceOf) Confirm(ctx context.Context, node *corev1.Node) bool {
	took, alive := e.cluster.answer(node.Name, time.Second, 200*time.Millisecond, 200*time.Millisecond)
	if !alive {
		<-ctx.Done()
		return false
	}
	select {
	case <-time.After(took):
		return true
	case <-ctx.Done():
		return false
	}
}

func newBigCluster(t *testing.T, size int) *bigCluster {
	c := &bigCluster{Cluster: controllertest.New(t), t: t, loss: 0.1, rnd: rand.New(rand.NewPCG(1, 2)),
		nodes: map[string]*bigNode{}, changed: make(chan struct{})}
	for i := range size {
		name := fmt.Sprintf("n%04d", i)
		c.nodes[name] = &bigNode{member: gossip.Member{Name: name, State: gossip.Alive, Since: time.Now()}}
		c.Add(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		})
	}
	c.Client.PrependReactor("update", "nodes", c.note)
	return c
}

// note writes down when a node goes Unknown.
func (c *bigCluster) note(action clienttesting.Action) (bool, kruntime.Object, error) {
	node, ok := action.(clienttesting.UpdateAction).GetObject().(*corev1.Node)
	if ok && node.Status.Conditions[0].Status == corev1.ConditionUnknown {
		c.mu.Lock()
		defer c.mu.Unlock()
		if n := c.nodes[node.Name]; n.unknown.IsZero() {
			n.unknown = time.Now()
		}
	}
	return false, nil, nil
}

// start starts the leader with some times.
func (c *bigCluster) start(times options.Times) {
	names := make([]string, 0, len(c.nodes))
	for name := range c.nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	config := liveness.Config{Pool: c, Store: c, Labelled: nodeleases.IsMember}
	var runs []func(context.Context) error
	if times.Fast {
		p := pulse.New(pulse.Config{Nodes: func() []string { return names }, Changed: c.Changed, Ask: c.ask})
		config.Pulse, runs = p, append(runs, p.Run)
	}
	life := liveness.New(config)
	runs = append(runs, life.Run)
	controller, err := nodelifecycle.New(
		nodelifecycle.Config{Informers: c.Informers, Liveness: evidenceOf{adapters.Liveness{Watch: life}, c},
			Settings: times.ForNodes()})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range runs {
		running.Go(func() {
			if err := run(ctx); err != nil {
				c.t.Error(err)
			}
		})
	}
	c.t.Cleanup(func() { cancel(); running.Wait() })
	c.Start(controller.Run)
}

// trouble lasts for a while: some nodes pause at any time, for half a second and more, gossip calls
// two living ones dead each second, and kills are spread over the time.
func (c *bigCluster) trouble(length time.Duration, kills int, longest time.Duration) {
	const step = 100 * time.Millisecond
	steps := int(length / step)
	for i := range steps {
		c.mu.Lock()
		for range kills*(i+1)/steps - kills*i/steps {
			n := c.living()
			n.killed = time.Now()
			// as memberlist's suspicion of a thousand
			n.told = time.Now().Add(12*time.Second + time.Duration(c.rnd.Int64N(int64(time.Minute))))
		}
		c.learn()
		for paused := 0; paused*100*15 < len(c.nodes); paused++ { // of 1.5 s in the mean, in steps of 0.1 s: 1 %
			n := c.living()
			n.paused, n.pauses = time.Now().Add(
				500*time.Millisecond+time.Duration(c.rnd.Int64N(int64(longest-500*time.Millisecond)))), n.pauses+1
		}
		if i%5 == 0 {
			n := c.living()
			n.member.State, n.member.Since = gossip.Dead, time.Now()
			n.told = time.Now().Add(time.Duration(c.rnd.Int64N(int64(10 * time.Second)))) // it refutes
			close(c.changed)
			c.changed = make(chan struct{})
		}
		c.mu.Unlock()
		time.Sleep(step)
	}
}

// learn updates gossip to its present knowledge. The lock is held.
func (c *bigCluster) learn() {
	for _, n := range c.nodes {
		if !c.learns || n.told.IsZero() || time.Now().Before(n.told) {
			continue
		}
		state := gossip.Alive
		if !n.killed.IsZero() {
			state = gossip.Dead
		}
		if n.told = (time.Time{}); n.member.State != state {
			n.member.State, n.member.Since = state, time.Now()
		}
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// living draws a node that was not killed and does not pause. The lock is held.
func (c *bigCluster) living() *bigNode {
	for {
		n := c.nodes[fmt.Sprintf("n%04d", c.rnd.IntN(len(c.nodes)))]
		// A pause follows another one after a moment in which the process works.
		if n.killed.IsZero() && time.Since(n.paused) > time.Second {
			return n
		}
	}
}

func TestFastFailureDetectionOfAThousandNodes(t *testing.T) {
	size, length, kills := 1000, time.Minute, 60
	if testing.Short() {
		size, length, kills = 200, 20*time.Second, 10
	}
	synctest.Test(t, func(t *testing.T) {
		c := newBigCluster(t, size)
		times := options.DefaultTimes()
		times.Fast = true
		if err := times.Complete(func(string) bool { return false }); err != nil {
			t.Fatal(err)
		}
		c.start(times)
		time.Sleep(5 * time.Second)
		c.trouble(length, kills, 2500*time.Millisecond)
		time.Sleep(5 * time.Second)

		c.mu.Lock()
		defer c.mu.Unlock()
		var found []time.Duration
		pauses := 0
		for name, n := range c.nodes {
			pauses += n.pauses
			switch {
			case n.killed.IsZero() && !n.unknown.IsZero():
				t.Errorf("%s lives, and went Unknown at %s, %s after its last pause", name, n.unknown,
					n.unknown.Sub(n.paused))
			case !n.killed.IsZero() && n.unknown.IsZero():
				t.Errorf("%s was killed at %s and is not Unknown", name, n.killed)
			case !n.killed.IsZero():
				found = append(found, n.unknown.Sub(n.killed))
			}
		}
		slices.Sort(found)
		if len(found) == 0 || found[len(found)-1] >= 5*time.Second {
			t.Fatalf("deaths were found after %v", found)
		}
		t.Logf("%d nodes, %d pauses: %d deaths were found after %s at the least, %s in the median, %s at the most",
			size, pauses, len(found), found[0], found[len(found)/2], found[len(found)-1])
	})
}

// The same with the default times: gossip learns of deaths in up to 72 s, nodes pause for up to
// twenty seconds.
func TestDefaultFailureDetectionOfAThousandNodes(t *testing.T) {
	size, kills := 1000, 60
	if testing.Short() {
		size, kills = 200, 10
	}
	synctest.Test(t, func(t *testing.T) {
		c := newBigCluster(t, size)
		c.learns = true
		c.start(options.DefaultTimes())
		time.Sleep(5 * time.Second)
		c.trouble(2*time.Minute, kills, 20*time.Second)
		c.trouble(2*time.Minute, 0, 20*time.Second)

		c.mu.Lock()
		defer c.mu.Unlock()
		var found []time.Duration
		for name, n := range c.nodes {
			known := n.member.Since // to gossip
			if known.Before(n.killed) {
				known = n.killed // it was wrong before, and right then
			}
			switch took := n.unknown.Sub(known); {
			case n.killed.IsZero() && !n.unknown.IsZero():
				t.Errorf("%s lives, and went Unknown at %s", name, n.unknown)
			case !n.killed.IsZero() && (n.unknown.IsZero() || took > 42*time.Second):
				t.Errorf("%s was killed at %s, gossip knew at %s, and it is Unknown since %s", name, n.killed, known,
					n.unknown)
			case !n.killed.IsZero():
				found = append(found, n.unknown.Sub(n.killed))
			}
		}
		slices.Sort(found)
		t.Logf("%d nodes: %d deaths were found after %s at the least, %s in the median, %s at the most", size,
			len(found), found[0], found[len(found)/2], found[len(found)-1])
	})
}

package nodelifecycle_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/barque/barque/controllers/nodelifecycle"
)

var historySeed = flag.Uint64("history-seed", 0, "the one random history to run; 0 runs many")

// A random history of a cluster. Nodes die and come back, and gossip is wrong about them.
// Connections break between them and the leader, and between them and the API. Kubelets have wrong
// clocks, leaders change, and some know of nothing yet. Every write of the controller is checked:
//
//   - no pod is evicted without a death: from a node that answers the leader at that moment, or
//     whose kubelet has reached the API in the last five minutes. A live kubelet writes every ten
//     seconds if it can;
//   - no node becomes Unknown that answers, that gossip holds alive, or whose kubelet wrote within
//     the grace.
//
// At the end, with all faults healed, everything is as at the beginning.
func TestNoEvictionWithoutADeath(t *testing.T) {
	histories := uint64(30)
	if testing.Short() {
		histories = 5
	}
	first := uint64(1)
	if *historySeed != 0 {
		first, histories = *historySeed, *historySeed
	}
	evictions := 0
	for seed := first; seed <= histories; seed++ {
		settings := nodelifecycle.Settings{}
		if seed%2 == 0 {
			settings = nodelifecycle.Settings{Period: time.Second, Grace: 3 * time.Second,
				ConfirmTimeout: 500 * time.Millisecond}
		}
		synctest.Test(t, func(t *testing.T) { evictions += runHistory(t, seed, settings) })
		if t.Failed() {
			t.Fatalf("history %d; run it alone with -history-seed=%d", seed, seed)
		}
	}
	if evictions == 0 && *historySeed == 0 {
		t.Error("nothing was ever evicted: the histories test nothing")
	}
}

// truth is how one node really is.
type truth struct {
	dead, leaderCut, apiCut bool
	skew                    time.Duration // of its clock
	heard                   time.Time     // when gossip last took it for alive, or was changed from that
	wrote                   time.Time     // when its kubelet last wrote
}

type history struct {
	*world
	rnd   *rand.Rand
	grace time.Duration
	nodes map[string]*truth // guarded by world.mu
	names []string

	settings  nodelifecycle.Settings
	evictions int // guarded by world.mu
}

const historyNodes = 9

func runHistory(t *testing.T, seed uint64, settings nodelifecycle.Settings) (evictions int) {
	h := &history{
		world: newWorldWith(t, historyNodes, func(i int) string { return fmt.Sprint("z", i%2) }, settings),
		rnd:   rand.New(rand.NewPCG(seed, 0)), nodes: map[string]*truth{}, settings: settings, grace: 40 * time.Second,
	}
	if settings.Grace != 0 {
		h.grace = settings.Grace
	}
	for i := range historyNodes {
		name := fmt.Sprint("n", i)
		h.names = append(h.names, name)
		h.nodes[name] = &truth{heard: time.Now(), wrote: time.Now(),
			skew: time.Duration(h.rnd.IntN(7201)-3600) * time.Second}
		h.answer(name, true)
	}
	h.Client.PrependReactor("delete", "pods", h.checkEviction)
	h.Client.PrependReactor("update", "nodes", h.checkUnknown)
	const length = 20 * time.Minute
	for end := time.Now().Add(length); time.Now().Before(end) && !t.Failed(); {
		h.happen()
		for range 1 + h.rnd.IntN(15) {
			h.kubelets()
			h.pass(2 * time.Second)
		}
	}
	h.heal()
	for range 60 {
		h.kubelets()
		h.pass(2 * time.Second)
	}
	for _, name := range h.names {
		if h.ready(name) != corev1.ConditionTrue || len(h.taints(name)) > 0 {
			t.Errorf("all is well, and %s is ready %s with the taints %v", name, h.ready(name), h.taints(name))
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.evictions
}

// pass lets time pass. The controller acts before the next change: otherwise a write would be
// judged by a change that came after its decision.
func (h *history) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// happen changes something.
func (h *history) happen() {
	name := h.names[h.rnd.IntN(len(h.names))]
	n := h.nodes[name]
	switch h.rnd.IntN(12) {
	case 0, 1, 2: // a death; gossip learns of it sooner or later
		h.change(name, func() { n.dead = true })
		h.pass(time.Duration(h.rnd.IntN(15)) * time.Second)
		h.gossips(nodelifecycle.Dead, name)
	case 3: // and back
		h.change(name, func() { n.dead = false })
		h.gossips(nodelifecycle.Alive, name)
	case 4: // gossip is wrong about one that may well live
		h.gossips(nodelifecycle.Suspect+nodelifecycle.State(h.rnd.IntN(2)), name)
	case 5: // gossip is right again
		if !n.dead {
			h.gossips(nodelifecycle.Alive, name)
		}
	case 6, 7: // ways are cut, and mended
		h.change(name, func() { n.leaderCut = !n.leaderCut })
	case 8:
		h.change(name, func() { n.apiCut = !n.apiCut })
	case 9: // the leader is cut off from many at once
		some := h.names[:h.rnd.IntN(len(h.names))]
		for _, name := range some {
			h.change(name, func() { h.nodes[name].leaderCut = true })
		}
		h.gossips(nodelifecycle.Suspect, some...)
	case 10: // another leader, with the same view
		h.abdicate()
		h.lead()
	case 11: // another one, whose gossip has just started
		h.abdicate()
		var forgotten []string
		for _, name := range h.names {
			h.change(name, func() {
				if h.lives[name].State != nodelifecycle.Alive || h.rnd.IntN(2) == 0 {
					forgotten = append(forgotten, name)
				}
			})
		}
		h.neverHeard(forgotten...)
		h.elect(h.settings)
	}
}

// change changes the state of a node, and with it whether it answers.
func (h *history) change(name string, change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.note(name)
	change()
	n := h.nodes[name]
	h.answers[name] = !n.dead && !n.leaderCut
	h.note(name)
}

// note keeps the times of a node. The lock is held.
func (h *history) note(name string) {
	if h.lives[name].State == nodelifecycle.Alive {
		h.nodes[name].heard = time.Now()
	}
}

func (h *history) gossips(state nodelifecycle.State, names ...string) {
	h.mu.Lock()
	for _, name := range names {
		h.note(name)
	}
	h.mu.Unlock()
	h.say(state, names...)
}

// heal makes everything well.
func (h *history) heal() {
	for _, name := range h.names {
		h.change(name, func() { n := h.nodes[name]; n.dead, n.leaderCut, n.apiCut = false, false, false })
	}
	h.gossips(nodelifecycle.Alive, h.names...)
}

// kubelets act like package kubelet/node: they write when the API has other conditions of their
// node, and every ten seconds while it is marked unreachable.
func (h *history) kubelets() {
	list, err := h.Client.CoreV1().Nodes().List(h.t.Context(), metav1.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, n := range list.Items {
		doubted := slices.ContainsFunc(n.Spec.Taints,
			func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnreachable })
		ready := n.Status.Conditions[0].Status == corev1.ConditionTrue
		h.mu.Lock()
		x := h.nodes[n.Name]
		writes := !x.dead && !x.apiCut && (doubted || !ready) && time.Since(x.wrote) >= 10*time.Second
		skew := x.skew
		h.mu.Unlock()
		if writes {
			h.kubeletWritesAt(n.Name, metav1.NewTime(time.Now().Add(skew)))
			h.mu.Lock()
			x.wrote = time.Now()
			h.mu.Unlock()
			h.replacePod(n.Name)
		}
	}
}

// replacePod gives a node whose pod was evicted, and that is back, another one.
func (h *history) replacePod(node string) {
	if name := "p" + node; h.going(name) {
		if err := h.Client.CoreV1().Pods("d").Delete(h.t.Context(), name, *metav1.NewDeleteOptions(0)); err != nil {
			h.t.Fatal(err)
		}
		h.runPod(node)
	}
}

// checkEviction looks at a deletion that the controller asks for.
func (h *history) checkEviction(action clienttesting.Action) (bool, kruntime.Object, error) {
	if grace := action.(clienttesting.DeleteActionImpl).DeleteOptions.GracePeriodSeconds; grace != nil {
		return false, nil, nil // the node's own
	}
	name := action.(clienttesting.DeleteAction).GetName()[1:] // pod pn1 is on node n1
	h.mu.Lock()
	defer h.mu.Unlock()
	h.note(name)
	n := h.nodes[name]
	h.evictions++
	if h.answers[name] || time.Since(n.wrote) < 300*time.Second {
		h.t.Errorf("a pod is evicted from %s, which is %+v at %s, and whose kubelet wrote %s ago", name, *n, time.Now(),
			time.Since(n.wrote))
	}
	return false, nil, nil
}

// checkUnknown looks at a node's conditions that the controller writes.
func (h *history) checkUnknown(action clienttesting.Action) (bool, kruntime.Object, error) {
	update, ok := action.(clienttesting.UpdateAction)
	if !ok || action.GetSubresource() != "status" {
		return false, nil, nil
	}
	node := update.GetObject().(*corev1.Node)
	if node.Status.Conditions[0].Status != corev1.ConditionUnknown {
		return false, nil, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.note(node.Name)
	n := h.nodes[node.Name]
	if h.answers[node.Name] || time.Since(n.heard) < h.grace || time.Since(n.wrote) < h.grace {
		h.t.Errorf("%s goes Unknown, and it is %+v at %s", node.Name, *n, time.Now())
	}
	return false, nil, nil
}

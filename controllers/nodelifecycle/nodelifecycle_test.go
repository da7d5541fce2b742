package nodelifecycle_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/nodelifecycle"
	"github.com/barque/barque/controllers/pods"
)

// gossip is a Liveness that the test speaks through.
type gossip struct {
	mu      sync.Mutex
	lives   map[string]nodelifecycle.Life
	answers map[string]bool
	foreign map[string]bool // nodes that are no members
	probes  int
	changed chan struct{}
}

func (g *gossip) Life(node string) (nodelifecycle.Life, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l, ok := g.lives[node]
	return l, ok
}

func (g *gossip) Member(node *corev1.Node) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.foreign[node.Name]
}

func (g *gossip) Changed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

func (g *gossip) Confirm(_ context.Context, node *corev1.Node) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.probes++
	return g.answers[node.Name]
}

// answer makes a node answer probes, or not.
func (g *gossip) answer(node string, does bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answers[node] = does
}

func (g *gossip) say(state nodelifecycle.State, nodes ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range nodes {
		g.lives[n] = nodelifecycle.Life{State: state, Since: time.Now()}
	}
	close(g.changed)
	g.changed = make(chan struct{})
}

type world struct {
	*controllertest.Cluster
	*gossip
	t          *testing.T
	controller *nodelifecycle.Controller
	abdicate   func() // ends the term and waits for it
}

// newWorld has n ready nodes, all alive, with one pod each that tolerates 300 s.
func newWorld(t *testing.T, n int, zone func(i int) string) *world {
	return newWorldWith(t, n, zone, nodelifecycle.Settings{})
}

func newWorldWith(t *testing.T, n int, zone func(i int) string, settings nodelifecycle.Settings) *world {
	w := &world{Cluster: controllertest.New(t), t: t, gossip: &gossip{
		lives: map[string]nodelifecycle.Life{}, answers: map[string]bool{}, foreign: map[string]bool{},
		changed: make(chan struct{}),
	}}
	for i := range n {
		name := fmt.Sprint("n", i)
		w.Add(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone(i)}},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		})
		w.runPod(name)
		w.say(nodelifecycle.Alive, name)
	}
	w.elect(settings)
	return w
}

// runPod puts a running pod that tolerates 300 s on a node.
func (w *world) runPod(node string) {
	seconds := int64(300)
	var tolerations []corev1.Toleration
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		tolerations = append(tolerations,
			corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
				TolerationSeconds: &seconds})
	}
	w.Cluster.Add(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "p" + node},
		Spec:       corev1.PodSpec{NodeName: node, Tolerations: tolerations},
		Status: corev1.PodStatus{Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	})
}

// elect makes a server that has just started lead.
func (w *world) elect(settings nodelifecycle.Settings) {
	w.t.Helper()
	var err error
	w.controller, err = nodelifecycle.New(
		nodelifecycle.Config{Informers: w.Informers, Liveness: w.gossip, Settings: settings})
	if err != nil {
		w.t.Fatal(err)
	}
	w.lead()
}

// lead begins a term.
func (w *world) lead() {
	w.abdicate = w.Start(w.controller.Run)
	synctest.Wait()
}

func oneZone(int) string { return "z" }

func (w *world) node(name string) *corev1.Node {
	w.t.Helper()
	n, err := w.Client.CoreV1().Nodes().Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// kubeletWrites makes a kubelet say that its node is ready.
func (w *world) kubeletWrites(node string) {
	w.t.Helper()
	w.kubeletWritesAt(node, metav1.Now())
}

// kubeletWritesAt is the same by a clock that may be wrong. It writes again when the controller was
// faster, as a kubelet does.
func (w *world) kubeletWritesAt(node string, at metav1.Time) {
	w.t.Helper()
	for {
		n := w.node(node)
		for i := range n.Status.Conditions {
			if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
				c.Status, c.LastHeartbeatTime = corev1.ConditionTrue, at
			}
		}
		_, err := w.Client.CoreV1().Nodes().UpdateStatus(w.t.Context(), n, metav1.UpdateOptions{})
		if err == nil {
			break
		}
		if !apierrors.IsConflict(err) {
			w.t.Fatal(err)
		}
	}
	synctest.Wait()
}

func (w *world) ready(name string) corev1.ConditionStatus {
	for _, c := range w.node(name).Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}

func (w *world) taints(name string) []string {
	var out []string
	for _, t := range w.node(name).Spec.Taints {
		out = append(out, t.Key+":"+string(t.Effect))
	}
	slices.Sort(out)
	return out
}

// evicting counts the nodes that carry a taint that evicts.
func (w *world) evicting() int {
	n := 0
	l, err := w.Client.CoreV1().Nodes().List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, node := range l.Items {
		for _, t := range node.Spec.Taints {
			if t.Effect == corev1.TaintEffectNoExecute {
				n++
			}
		}
	}
	return n
}

func (w *world) pod(name string) *corev1.Pod {
	w.t.Helper()
	p, err := w.Client.CoreV1().Pods("d").Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

var (
	noSchedule  = []string{corev1.TaintNodeUnreachable + ":NoSchedule"}
	unreachable = []string{corev1.TaintNodeUnreachable + ":NoExecute", corev1.TaintNodeUnreachable + ":NoSchedule"}
)

func TestDeadNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, oneZone)
		w.say(nodelifecycle.Suspect, "n1")
		time.Sleep(8 * time.Second)
		w.say(nodelifecycle.Dead, "n1") // the time counts from the suspicion
		time.Sleep(31 * time.Second)
		if w.ready("n1") != corev1.ConditionTrue {
			t.Fatal("marked before the grace is over")
		}
		time.Sleep(7 * time.Second)
		if w.ready("n1") != corev1.ConditionUnknown || !slices.Equal(w.taints("n1"), unreachable) {
			t.Fatalf("ready %s, taints %v after 46 s", w.ready("n1"), w.taints("n1"))
		}
		p := w.pod("pn1")
		if p.Status.Conditions[0].Status != corev1.ConditionFalse || p.DeletionTimestamp != nil {
			t.Errorf("pod after marking: %+v", p.Status)
		}
		time.Sleep(290 * time.Second)
		if w.pod("pn1").DeletionTimestamp != nil {
			t.Error("evicted before its tolerationSeconds")
		}
		time.Sleep(15 * time.Second)
		p = w.pod("pn1")
		if p.DeletionTimestamp == nil || pods.Condition(p, corev1.DisruptionTarget) == nil {
			t.Errorf("not evicted: %+v", p.Status)
		}
		for _, other := range []string{"n0", "n2"} {
			if w.ready(other) != corev1.ConditionTrue || len(w.taints(other)) > 0 ||
				w.pod("p"+other).DeletionTimestamp != nil {
				t.Errorf("%s was touched", other)
			}
		}
		// Its kubelet comes back and says so: the taints go.
		w.say(nodelifecycle.Alive, "n1")
		w.kubeletWrites("n1")
		if len(w.taints("n1")) > 0 {
			t.Errorf("taints stay: %v", w.taints("n1"))
		}
	})
}

func TestGossipIsNoVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, oneZone)
		w.answer("n1", true)
		w.say(nodelifecycle.Dead, "n1")
		time.Sleep(10 * time.Minute)
		if w.ready("n1") != corev1.ConditionTrue || w.pod("pn1").DeletionTimestamp != nil {
			t.Error("a node that answers was marked")
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.probes < 100 || w.probes > 130 { // every 5 s
			t.Errorf("%d probes in ten minutes", w.probes)
		}
	})
}

func TestNodeBackBeforeEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, oneZone)
		w.say(nodelifecycle.Dead, "n1")
		time.Sleep(time.Minute)
		w.answer("n1", true) // but its kubelet has not written yet
		time.Sleep(10 * time.Minute)
		if w.pod("pn1").DeletionTimestamp != nil {
			t.Error("evicted from a node that answers")
		}
	})
}

func TestHealthyClusterMakesNoWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5, oneZone)
		w.Client.ClearActions()
		time.Sleep(time.Hour)
		for _, a := range w.Client.Actions() {
			t.Errorf("%s %s", a.GetVerb(), a.GetResource().Resource)
		}
	})
}

func TestMassFailure(t *testing.T) {
	for _, c := range []struct {
		name      string
		nodes     int
		dead      int
		zone      func(int) string
		after     time.Duration
		evictions int
	}{
		{"one node of three", 3, 1, oneZone, time.Minute, 1},
		{"one every ten seconds", 10, 4, oneZone, 57 * time.Second, 2},
		{"all of them in time", 10, 4, oneZone, 3 * time.Minute, 4},
		{"a large share stops it", 10, 6, oneZone, time.Hour, 0},
		{"a large share of a large zone slows it", 60, 40, oneZone, 40*time.Second + 4*time.Minute, 3},
		{"a whole zone goes on", 10, 5, func(i int) string { return fmt.Sprint(i / 5) }, 10 * time.Minute, 5},
		{"everything stops it", 10, 10, oneZone, time.Hour, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, c.nodes, c.zone)
				var dead []string
				for i := range c.dead {
					dead = append(dead, fmt.Sprint("n", i))
				}
				w.say(nodelifecycle.Dead, dead...)
				time.Sleep(c.after)
				if n := w.evicting(); n != c.evictions {
					t.Errorf("%d nodes evict, want %d", n, c.evictions)
				}
				for _, d := range dead {
					if w.ready(d) != corev1.ConditionUnknown {
						t.Errorf("%s is not marked", d)
					}
				}
			})
		})
	}
}

func TestConditionTaints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, oneZone)
		n := w.node("n0")
		n.Spec.Unschedulable = true
		n.Spec.Taints = []corev1.Taint{{Key: "users", Effect: corev1.TaintEffectNoSchedule}}
		if _, err := w.Client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		n = w.node("n0")
		n.Status.Conditions = append(n.Status.Conditions,
			corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue})
		if _, err := w.Client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want := []string{corev1.TaintNodeDiskPressure + ":NoSchedule", corev1.TaintNodeUnschedulable + ":NoSchedule",
			"users:NoSchedule"}
		if got := w.taints("n0"); !slices.Equal(got, want) {
			t.Errorf("taints %v, want %v", got, want)
		}
	})
}

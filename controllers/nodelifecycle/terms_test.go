package nodelifecycle_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/controllers/nodelifecycle"
)

// neverHeard makes gossip forget nodes, as that of a server which has just started.
func (g *gossip) neverHeard(nodes ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range nodes {
		delete(g.lives, n)
	}
}

// A leader that takes over believes nothing ill of a node of which nothing ill is known.
func TestANewLeaderMarksNoHealthyNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, oneZone)
		w.Client.ClearActions()
		for i := range 20 {
			w.abdicate()
			switch i % 4 {
			case 1: // its gossip has not heard of them yet, and they are slow to answer
				w.neverHeard("n0", "n1", "n2")
			case 2:
				w.say(nodelifecycle.Alive, "n0", "n1", "n2")
			case 3: // nor has that of this one, but they answer
				w.neverHeard("n0", "n1", "n2")
				for _, n := range []string{"n0", "n1", "n2"} {
					w.answer(n, true)
				}
			}
			w.lead()
			time.Sleep(7 * time.Second)
		}
		if list := w.writes("nodes"); len(list) > 0 {
			t.Errorf("%d writes: %v", len(list), list)
		}
	})
}

// Since when a node is silent does not begin anew with a term.
func TestTheGraceOfADeadNodeGoesOnOverTerms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, oneZone)
		w.say(nodelifecycle.Suspect, "n1")
		for range 7 {
			time.Sleep(5 * time.Second)
			w.abdicate()
			w.lead()
		}
		time.Sleep(5*time.Second - time.Millisecond)
		if w.ready("n1") != corev1.ConditionTrue {
			t.Error("marked before 40 s")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if w.ready("n1") != corev1.ConditionUnknown {
			t.Errorf("ready %s, 40 s after it died and with the eighth term", w.ready("n1"))
		}
	})
}

// A server that started after a node had died has never heard of it. It gives the node its grace
// once, from when it started, however often it is elected.
func TestTheGraceBeginsAnewAtMostOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, oneZone)
		w.neverHeard("n1")
		w.abdicate()
		for range 5 {
			w.lead()
			time.Sleep(11 * time.Second)
			w.abdicate()
		}
		if w.ready("n1") != corev1.ConditionTrue {
			t.Error("marked before 60 s")
		}
		w.lead()
		time.Sleep(6 * time.Second)
		if w.ready("n1") != corev1.ConditionUnknown {
			t.Errorf("ready %s, 61 s after the server started and with the sixth term", w.ready("n1"))
		}
	})
}

// Nodes of which a server that has just started hears nothing may all be cut off from it. They
// count as gone before the first of them is marked.
func TestMassFailureOfNodesNeverHeardOf(t *testing.T) {
	for _, c := range []struct{ nodes, unheard, evictions int }{
		{10, 6, 0},  // a large share
		{10, 10, 0}, // all
		{10, 4, 4},
	} {
		t.Run(fmt.Sprintf("%d of %d", c.unheard, c.nodes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, c.nodes, oneZone)
				w.abdicate()
				for i := range c.unheard {
					w.neverHeard(fmt.Sprint("n", i))
				}
				w.elect(nodelifecycle.Settings{})
				time.Sleep(10 * time.Minute)
				if n := w.evicting(); n != c.evictions {
					t.Errorf("%d nodes evict, want %d", n, c.evictions)
				}
				for i := range c.unheard {
					if node := fmt.Sprint("n", i); w.ready(node) != corev1.ConditionUnknown {
						t.Errorf("%s is not marked", node)
					}
				}
			})
		})
	}
}

// A server that has just started has heard of no node. That must not count as the death of all,
// which would stop the running evictions.
func TestAYoungLeaderGoesOnWithEvictions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, oneZone)
		w.say(nodelifecycle.Dead, "n1")
		time.Sleep(2 * time.Minute)
		if !slices.Equal(w.taints("n1"), unreachable) {
			t.Fatalf("taints %v", w.taints("n1"))
		}
		before := w.node("n1").Spec.Taints
		w.abdicate()
		w.neverHeard("n0", "n1", "n2")
		w.elect(nodelifecycle.Settings{})
		time.Sleep(10 * time.Second)
		w.say(nodelifecycle.Alive, "n0", "n2")
		w.say(nodelifecycle.Dead, "n1")
		time.Sleep(10 * time.Second)
		if now := w.node("n1").Spec.Taints; !equality.Semantic.DeepEqual(before, now) {
			t.Errorf("the taints were %v, and are %v", before, now)
		}
	})
}

// The time until pods are evicted stands in the taint; a new leader goes on with it.
func TestEvictionsGoOnOverTerms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, oneZone)
		w.say(nodelifecycle.Dead, "n1")
		for range 33 {
			time.Sleep(10 * time.Second)
			w.abdicate()
			w.lead()
		}
		if w.going("pn1") {
			t.Error("evicted before 340 s")
		}
		time.Sleep(11 * time.Second)
		if !w.going("pn1") {
			t.Error("not evicted after 341 s")
		}
	})
}

// A live node reports an illness by gossip.
func TestANodeThatSaysThatItIsIll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, oneZone)
		ill := func(what string) {
			w.mu.Lock()
			w.lives["n1"] = nodelifecycle.Life{State: nodelifecycle.Alive, Since: time.Now(), Ill: what}
			w.mu.Unlock()
			w.say(nodelifecycle.Alive, "n0") // wakes the controller
			synctest.Wait()
		}
		ill("kubelet")
		time.Sleep(14 * time.Second)
		ill("") // well again in time
		time.Sleep(time.Minute)
		if w.ready("n1") != corev1.ConditionTrue {
			t.Fatalf("ready %s", w.ready("n1"))
		}
		ill("kubelet")
		time.Sleep(14 * time.Second)
		if w.ready("n1") != corev1.ConditionTrue {
			t.Error("its kubelet had no time to say so itself")
		}
		time.Sleep(2 * time.Second)
		n := w.node("n1")
		if c := n.Status.Conditions[0]; c.Status != corev1.ConditionFalse || c.Reason != "NodeIll" || c.Message == "" {
			t.Errorf("its condition is %+v", c)
		}
		if got := w.taints("n1"); len(got) != 2 || got[0] != corev1.TaintNodeNotReady+":NoExecute" {
			t.Errorf("taints %v", got)
		}
		if w.ready("n0") != corev1.ConditionTrue || w.ready("n2") != corev1.ConditionTrue {
			t.Error("others were marked")
		}
		// The kubelet's own conditions are left alone.
		w.writes("nodes")
		n.Status.Conditions[0].Reason, n.Status.Conditions[0].Message = "KubeletNotReady",
			"container runtime is not reachable"
		if _, err := w.Client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if list := w.writes("nodes"); len(list) != 1 {
			t.Errorf("writes: %v", list)
		}
		ill("")
		w.kubeletWrites("n1")
		time.Sleep(time.Second)
		if got := w.taints("n1"); w.ready("n1") != corev1.ConditionTrue || len(got) > 0 {
			t.Errorf("ready %s, taints %v, and it is well", w.ready("n1"), got)
		}
	})
}

// A node that says good-bye is not dead: it may be starting again. Nothing is evicted in the time
// that takes, also where the grace is short.
func TestAGoodbyeIsNoDeath(t *testing.T) {
	for name, settings := range map[string]nodelifecycle.Settings{
		"default times": {}, "short grace": {Period: time.Second, Grace: 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorldWith(t, 3, oneZone, settings)
				w.say(nodelifecycle.Left, "n1")
				time.Sleep(39 * time.Second)
				if w.ready("n1") != corev1.ConditionTrue || w.going("pn1") {
					t.Errorf("ready %s, pod going %v", w.ready("n1"), w.going("pn1"))
				}
				w.answer("n1", true)
				w.say(nodelifecycle.Alive, "n1")
				time.Sleep(time.Second)
				if got := w.taints("n1"); len(got) > 0 {
					t.Errorf("taints stay: %v", got)
				}
				w.say(nodelifecycle.Left, "n1")
				w.answer("n1", false)
				time.Sleep(41 * time.Second)
				if w.ready("n1") != corev1.ConditionUnknown {
					t.Error("it does not come back, and nobody says so")
				}
			})
		})
	}
}

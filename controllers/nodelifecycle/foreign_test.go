package nodelifecycle_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/controllers/nodelifecycle"
)

// newForeignWorld has n foreign nodes that gossip has never heard of, ready and with one pod each,
// beside three members.
func newForeignWorld(t *testing.T, n int) *world {
	w := newWorld(t, 3, oneZone)
	w.abdicate()
	for i := range n {
		w.addForeign(fmt.Sprint("f", i), corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue})
	}
	w.lead()
	return w
}

func (w *world) addForeign(name string, conditions ...corev1.NodeCondition) {
	w.mu.Lock()
	w.foreign[name] = true
	w.mu.Unlock()
	w.Add(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: "foreign"}},
		Status:     corev1.NodeStatus{Conditions: conditions},
	})
	w.runPod(name)
}

// renew renews a node's lease as a kubelet does, by a clock that is wrong by skew.
func (w *world) renew(node string, skew time.Duration) {
	w.t.Helper()
	leases := w.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	renewed := ptr.To(metav1.NewMicroTime(time.Now().Add(skew)))
	l, err := leases.Get(w.t.Context(), node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = leases.Create(w.t.Context(), &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: ptr.To[int32](40),
				RenewTime: renewed},
		}, metav1.CreateOptions{})
	case err == nil:
		l.Spec.RenewTime = renewed
		_, err = leases.Update(w.t.Context(), l, metav1.UpdateOptions{})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// heartbeats renews the leases of nodes every ten seconds for a while, and returns when they are
// due again.
func heartbeats(w *world, length, skew time.Duration, nodes ...string) {
	w.t.Helper()
	for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(10 * time.Second) {
		for _, n := range nodes {
			w.renew(n, skew)
		}
		synctest.Wait()
	}
}

func (w *world) questions() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.probes
}

// A foreign node counts as alive while it renews its lease, with any clock. Then it takes
// Kubernetes' steps.
func TestForeignNodeLivesByItsLease(t *testing.T) {
	for _, skew := range []time.Duration{0, -3 * time.Hour, 3 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			w := newForeignWorld(t, 2)
			w.Client.ClearActions()
			heartbeats(w, 10*time.Minute, skew, "f0", "f1")
			if list := w.writes("nodes"); len(list) > 0 {
				t.Fatalf("both live, and %v", list)
			}
			// f0 stops; it was last seen ten seconds ago.
			heartbeats(w, 20*time.Second, skew, "f1")
			if w.ready("f0") != corev1.ConditionTrue || len(w.taints("f0")) > 0 {
				t.Fatalf("within the grace: ready %s, taints %v", w.ready("f0"), w.taints("f0"))
			}
			heartbeats(w, 20*time.Second, skew, "f1")
			if w.ready("f0") != corev1.ConditionUnknown || !slices.Equal(w.taints("f0"), unreachable) {
				t.Fatalf("after the grace: ready %s, taints %v", w.ready("f0"), w.taints("f0"))
			}
			if p := w.pod("pf0"); p.Status.Conditions[0].Status != corev1.ConditionFalse || p.DeletionTimestamp != nil {
				t.Errorf("its pod after the grace: %+v", p.Status)
			}
			heartbeats(w, 280*time.Second, skew, "f1")
			if w.pod("pf0").DeletionTimestamp != nil {
				t.Error("evicted before its tolerationSeconds")
			}
			heartbeats(w, 20*time.Second, skew, "f1")
			if w.pod("pf0").DeletionTimestamp == nil {
				t.Error("not evicted")
			}
			if w.ready("f1") != corev1.ConditionTrue || w.pod("pf1").DeletionTimestamp != nil {
				t.Error("the other one was touched")
			}
			// It renews again, and its kubelet says that it is ready.
			heartbeats(w, 20*time.Second, skew, "f0", "f1")
			if w.ready("f0") != corev1.ConditionUnknown {
				t.Error("a lease alone has made it ready")
			}
			w.kubeletWrites("f0")
			heartbeats(w, 2*time.Minute, skew, "f0", "f1")
			if w.ready("f0") != corev1.ConditionTrue || len(w.taints("f0")) > 0 {
				t.Errorf("back: ready %s, taints %v", w.ready("f0"), w.taints("f0"))
			}
			if n := w.questions(); n > 0 {
				t.Errorf("nodes were asked %d times", n)
			}
		})
	}
}

// A node without a lease is judged by its status, and a node that never wrote anything has the
// grace of a start.
func TestForeignNodeLivesByItsStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newForeignWorld(t, 1)
		w.addForeign("new")
		synctest.Wait()
		for range 59 {
			w.kubeletWritesAt("f0", metav1.NewTime(time.Now().Add(-time.Hour)))
			time.Sleep(time.Second)
		}
		if s := w.ready("new"); s != "" {
			t.Fatalf("the new node is ready %q before its grace is over", s)
		}
		time.Sleep(2 * time.Second)
		if s := w.ready("new"); s != corev1.ConditionUnknown {
			t.Errorf("the new node is ready %q after its grace", s)
		}
		time.Sleep(36 * time.Second)
		if s := w.ready("f0"); s != corev1.ConditionTrue {
			t.Fatalf("ready %s, 39 s after its last word", s)
		}
		time.Sleep(2 * time.Second)
		if s := w.ready("f0"); s != corev1.ConditionUnknown {
			t.Errorf("ready %s, 41 s after its last word", s)
		}
	})
}

// A new leader has observed nothing yet: the whole grace begins anew.
func TestANewLeaderObservesForeignNodesAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newForeignWorld(t, 1)
		w.renew("f0", 0)
		time.Sleep(35 * time.Second)
		w.abdicate()
		time.Sleep(time.Hour) // there is no leader
		w.lead()
		time.Sleep(39 * time.Second)
		if s := w.ready("f0"); s != corev1.ConditionTrue {
			t.Fatalf("ready %s before the new leader's grace is over", s)
		}
		time.Sleep(2 * time.Second)
		if s := w.ready("f0"); s != corev1.ConditionUnknown {
			t.Errorf("ready %s after it", s)
		}
	})
}

// The informer of leases may be late, or have lost its watch: the store has the last word.
func TestALateInformerKillsNoForeignNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newForeignWorld(t, 1)
		w.renew("f0", 0)
		unavailable := true
		w.Client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, kruntime.Object, error) {
			if unavailable {
				return true, nil, apierrors.NewServiceUnavailable("no leader")
			}
			return true, &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "f0"},
				Spec:       coordinationv1.LeaseSpec{RenewTime: ptr.To(metav1.NowMicro())},
			}, nil
		})
		time.Sleep(5 * time.Minute)
		if s := w.ready("f0"); s != corev1.ConditionTrue {
			t.Fatalf("the lease cannot be read, and the node is called %s", s)
		}
		unavailable = false
		time.Sleep(5 * time.Minute)
		if s := w.ready("f0"); s != corev1.ConditionTrue || len(w.taints("f0")) > 0 {
			t.Errorf("ready %s, taints %v", s, w.taints("f0"))
		}
	})
}

// A member is judged by gossip, whatever lease of its name is stored.
func TestNoMemberIsJudgedByALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, oneZone)
		w.renew("n0", 0) // and never again
		w.say(nodelifecycle.Dead, "n1")
		heartbeats(w, 10*time.Minute, 0, "n1")
		if w.ready("n0") != corev1.ConditionTrue || w.pod("pn0").DeletionTimestamp != nil {
			t.Errorf("n0 lives, and is ready %s", w.ready("n0"))
		}
		if w.ready("n1") != corev1.ConditionUnknown || w.pod("pn1").DeletionTimestamp == nil {
			t.Errorf("n1 is dead, somebody renews a lease for it, and it is ready %s", w.ready("n1"))
		}
	})
}

// All nodes of a provider stop at once: the first of them to be looked at is not evicted as if it
// were the only one.
func TestForeignNodesThatStopTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newForeignWorld(t, 10)
		var all []string
		for i := range 10 {
			all = append(all, fmt.Sprint("f", i))
		}
		heartbeats(w, time.Minute, 0, all...)
		heartbeats(w, time.Hour, 0, all[:3]...)
		if n := w.evicting(); n != 0 {
			t.Errorf("%d nodes evict", n)
		}
		for _, name := range all[3:] {
			if w.ready(name) != corev1.ConditionUnknown {
				t.Errorf("%s is ready %s", name, w.ready(name))
			}
		}
	})
}

// A random history: nodes renew, or not, by lease or by status, and leaders change. No node goes
// Unknown within the grace, and each one does soon after it, however often the leader looks.
func TestForeignNodesInRandomHistories(t *testing.T) {
	seeds := uint64(10)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			const n = 6
			w, rnd := newForeignWorld(t, n), rand.New(rand.NewPCG(seed, 6))
			seen := map[string]time.Time{}
			began := time.Now()
			stopped := map[string]bool{}
			for range 300 {
				for i := range n {
					name := fmt.Sprint("f", i)
					if rnd.IntN(15) == 0 {
						stopped[name] = !stopped[name]
					}
					if stopped[name] || rnd.IntN(3) > 0 {
						continue
					}
					if rnd.IntN(4) == 0 || w.ready(name) != corev1.ConditionTrue {
						w.kubeletWrites(name)
					} else {
						w.renew(name, time.Duration(rnd.IntN(7200)-3600)*time.Second)
					}
					seen[name] = time.Now()
				}
				if rnd.IntN(60) == 0 {
					w.abdicate()
					w.lead()
					began = time.Now()
				}
				time.Sleep(5 * time.Second)
				synctest.Wait()
				for i := range n {
					name := fmt.Sprint("f", i)
					since := seen[name]
					if began.After(since) {
						since = began
					}
					silent, ready := time.Since(since), w.ready(name)
					if ready == corev1.ConditionUnknown && seen[name].After(began) && silent < 40*time.Second {
						t.Fatalf("seed %d: %s is Unknown, %s after a sign of life", seed, name, silent)
					}
					if ready == corev1.ConditionTrue && silent > 41*time.Second {
						t.Fatalf("seed %d: %s is ready, %s after a sign of life", seed, name, silent)
					}
				}
			}
		})
	}
}

// A thousand nodes that renew every ten seconds cost the leader no write and no probe, and one
// check each in a grace.
func TestWhatForeignHeartbeatsCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, length = 1000, 2 * time.Minute
		w := newForeignWorld(t, 0)
		w.abdicate()
		var all []string
		for i := range n {
			name := fmt.Sprint("f", i)
			all = append(all, name)
			w.addForeign(name, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue})
		}
		looks := nodelifecycle.CountLooks(w.controller)
		w.lead()
		heartbeats(w, 10*time.Second, 0, all...) // makes the leases
		looks.Store(0)
		w.Client.ClearActions()
		heartbeats(w, length, 0, all...)
		renewals := n * int(length/(10*time.Second))
		var others int
		for _, a := range w.Client.Actions() {
			if a.GetResource().Resource == "leases" && (a.GetVerb() == "get" || a.GetVerb() == "update") {
				renewals-- // a renewal is a get and an update
				continue
			}
			others++
		}
		if others > 0 {
			t.Errorf("the leader made %d requests", others)
		}
		if want := -n * int(length/(10*time.Second)); renewals != want {
			t.Errorf("leases were read or written %d times more than by their nodes", want-renewals)
		}
		// Each check postpones the next one by at least 30 s, the rest of the grace after a
		// renewal.
		members := 3 * int(length/(5*time.Second)+1)
		if got, most := int(looks.Load()), n*int(length/(30*time.Second)+1)+members; got > most {
			t.Errorf("%d looks at nodes, want %d at most", got, most)
		}
		if w.evicting() > 0 {
			t.Error("some are evicted")
		}
	})
}

package nodelifecycle_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/controllers/nodelifecycle"
	"github.com/barque/barque/controllers/pods"
)

// bind adds a pod that the scheduler has just given to a node.
func (w *world) bind(name, node string, edit func(*corev1.Pod)) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: "r", Controller: ptr.To(true)},
		}},
		Spec:   corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if edit != nil {
		edit(pod)
	}
	if _, err := w.Client.CoreV1().Pods("d").Create(w.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

func (w *world) going(pod string) bool { return w.pod(pod).DeletionTimestamp != nil }

// writes lists the writes of one kind since the last call.
func (w *world) writes(resource string) (list []string) {
	for _, a := range w.Client.Actions() {
		if a.GetVerb() != "get" && a.GetVerb() != "list" && a.GetVerb() != "watch" &&
			a.GetResource().Resource == resource {
			list = append(list, a.GetVerb()+" "+a.GetSubresource())
		}
	}
	w.Client.ClearActions()
	return list
}

func TestUnreachableNodeGetsNoNewPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, oneZone)
		w.say(nodelifecycle.Suspect, "n1")
		synctest.Wait()
		if !slices.Equal(w.taints("n1"), noSchedule) || w.ready("n1") != corev1.ConditionTrue {
			t.Fatalf("at once: taints %v, ready %s", w.taints("n1"), w.ready("n1"))
		}
		time.Sleep(30 * time.Second)
		if !slices.Equal(w.taints("n1"), noSchedule) || w.ready("n1") != corev1.ConditionTrue || w.going("pn1") ||
			!pods.Ready(w.pod("pn1")) {
			t.Errorf("within its grace: taints %v, ready %s, pod %+v", w.taints("n1"), w.ready("n1"),
				w.pod("pn1").Status)
		}
		// It is heard of again, but its kubelet needs a moment yet.
		w.say(nodelifecycle.Alive, "n1")
		time.Sleep(2 * time.Second)
		if !slices.Equal(w.taints("n1"), noSchedule) {
			t.Errorf("taints %v before its kubelet answers", w.taints("n1"))
		}
		w.answer("n1", true)
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if len(w.taints("n1")) > 0 {
			t.Errorf("taints stay: %v", w.taints("n1"))
		}
	})
}

func TestUnknownWhenTheGraceIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, oneZone)
		time.Sleep(3 * time.Second) // the looks of the period come at other moments
		w.say(nodelifecycle.Suspect, "n1")
		time.Sleep(40*time.Second - time.Millisecond)
		if w.ready("n1") != corev1.ConditionTrue {
			t.Error("marked before the grace is over")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if w.ready("n1") != corev1.ConditionUnknown || !slices.Equal(w.taints("n1"), unreachable) {
			t.Errorf("after 40 s: ready %s, taints %v", w.ready("n1"), w.taints("n1"))
		}
	})
}

func TestAFlapCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, oneZone)
		w.answer("n1", true)
		w.Client.ClearActions()
		for range 100 {
			w.say(nodelifecycle.Suspect, "n1")
			time.Sleep(700 * time.Millisecond)
			w.say(nodelifecycle.Alive, "n1")
			time.Sleep(700 * time.Millisecond)
		}
		if list := w.writes("nodes"); len(list) > 0 {
			t.Errorf("%d writes: %v", len(list), list)
		}
	})
}

func TestPodsThatWereNeverAcknowledgedAreReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, oneZone)
		w.bind("before", "n1", nil)
		w.bind("started", "n1", func(p *corev1.Pod) { p.Status.StartTime = ptr.To(metav1.Now()) })
		w.bind("bare", "n1", func(p *corev1.Pod) { p.OwnerReferences = nil })
		w.bind("elsewhere", "n2", nil)
		time.Sleep(time.Minute)
		if w.going("before") {
			t.Fatal("deleted from a node that is well")
		}
		w.say(nodelifecycle.Suspect, "n1")
		time.Sleep(900 * time.Millisecond)
		if w.going("before") {
			t.Error("its kubelet had no time")
		}
		time.Sleep(200 * time.Millisecond)
		w.bind("after", "n1", nil) // by a scheduler that did not know yet
		synctest.Wait()
		p := w.pod("before")
		if c := pods.Condition(p, corev1.DisruptionTarget); p.DeletionTimestamp == nil || c == nil ||
			c.Reason != "NodeUnreachable" {
			t.Errorf("not deleted: %+v", p.Status)
		}
		time.Sleep(1100 * time.Millisecond)
		if !w.going("after") {
			t.Error("the pod that came later is not deleted")
		}
		time.Sleep(30 * time.Second)
		for _, name := range []string{"started", "bare", "elsewhere", "pn1"} {
			if w.going(name) {
				t.Errorf("%s was deleted", name)
			}
		}
	})
}

// A node that stops in order may come back soon. The pods that it got in its last moment wait for
// it: a Job counts a deleted pod as failed.
func TestPodsWaitForANodeThatSaidGoodbye(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, oneZone)
		w.bind("first", "n1", nil)
		w.answer("n1", false)
		w.say(nodelifecycle.Left, "n1")
		time.Sleep(30 * time.Second)
		if w.going("first") {
			t.Error("deleted while the node may be starting again")
		}
		// Its process is heard of before its kubelet answers.
		for _, heard := range []nodelifecycle.State{nodelifecycle.Suspect, nodelifecycle.Alive} {
			w.say(heard, "n1")
			time.Sleep(4 * time.Second)
			if w.going("first") {
				t.Fatalf("deleted while the node, which is %v, is starting", heard)
			}
		}
		w.answer("n1", true)
		time.Sleep(time.Minute)
		if w.going("first") {
			t.Error("deleted from a node that is back")
		}
		w.answer("n1", false)
		w.say(nodelifecycle.Left, "n1")
		w.bind("last", "n1", nil)
		time.Sleep(39 * time.Second)
		if w.going("last") {
			t.Error("deleted before the end of the grace")
		}
		time.Sleep(2 * time.Second)
		if !w.going("last") {
			t.Error("it still waits for a node that does not come back")
		}
	})
}

func TestPodsOfANodeThatAnswersAgainStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, oneZone)
		w.bind("p", "n1", nil)
		w.say(nodelifecycle.Suspect, "n1")
		synctest.Wait()
		w.answer("n1", true) // before any server has noticed
		time.Sleep(time.Minute)
		if w.going("p") {
			t.Error("deleted from a node that answers")
		}
	})
}

func TestAnAcknowledgementInTheLastMomentCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, oneZone)
		w.bind("p", "n1", nil)
		w.say(nodelifecycle.Suspect, "n1")
		time.Sleep(999 * time.Millisecond)
		p := w.pod("p")
		p.Status.StartTime = ptr.To(metav1.Now())
		if _, err := w.Client.CoreV1().Pods("d").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		if w.going("p") {
			t.Error("deleted though it was acknowledged")
		}
	})
}

func TestNothingIsReplacedWhenTheLeaderIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, oneZone)
		w.bind("p", "n1", nil)
		w.say(nodelifecycle.Suspect, "n0", "n1", "n2")
		time.Sleep(time.Minute)
		if w.going("p") {
			t.Error("deleted, and there is no better node")
		}
	})
}

// A node that gossip and the leader cannot reach, and whose kubelet reaches the API: it repeats its
// conditions while it has the taint, as package kubelet/node does.
func TestKubeletAndControllerDoNotContradictEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, oneZone)
		time.Sleep(time.Second)
		w.writes("nodes")
		w.say(nodelifecycle.Dead, "n1")
		synctest.Wait()
		for range 60 {
			if !slices.Equal(w.taints("n1"), noSchedule) || w.ready("n1") != corev1.ConditionTrue {
				t.Fatalf("taints %v, ready %s", w.taints("n1"), w.ready("n1"))
			}
			w.kubeletWrites("n1")
			time.Sleep(10 * time.Second)
		}
		byController := 0
		for _, write := range w.writes("nodes") {
			if write != "update status" {
				byController++
			}
		}
		if byController != 1 || w.going("pn1") {
			t.Errorf("%d writes by the controller, want one; pod deleted: %v", byController, w.going("pn1"))
		}
		// Now that is cut, too.
		time.Sleep(35 * time.Second)
		if w.ready("n1") != corev1.ConditionUnknown {
			t.Errorf("ready %s, 45 s after the last word of its kubelet", w.ready("n1"))
		}
	})
}

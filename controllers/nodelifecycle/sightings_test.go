package nodelifecycle_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/controllers/nodelifecycle"
)

// taintBy adds a taint to a node as an operator does, without a time.
func (w *world) taintBy(node, value string) {
	w.t.Helper()
	n := w.node(node)
	n.Spec.Taints = nil
	if value != "" {
		n.Spec.Taints = []corev1.Taint{{Key: "repair", Value: value, Effect: corev1.TaintEffectNoExecute}}
	}
	if _, err := w.Client.CoreV1().Nodes().Update(w.t.Context(), n, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// runPatient puts a pod on a node that tolerates such a taint for a while.
func (w *world) runPatient(name, node string, seconds int64) {
	w.runPatientAt(name, node, seconds, time.Now())
}

// runPatientAt is the same, bound by a server whose clock may be wrong.
func (w *world) runPatientAt(name, node string, seconds int64, at time.Time) {
	now := metav1.NewTime(at)
	w.Cluster.Add(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, CreationTimestamp: now},
		Spec: corev1.PodSpec{NodeName: node,
			Tolerations: []corev1.Toleration{
				{Key: "repair", Operator: corev1.TolerationOpExists, TolerationSeconds: &seconds}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now},
		}},
	})
	synctest.Wait()
}

// leavesIn fails unless a pod leaves after so long, and not before.
func leavesIn(w *world, pod string, after time.Duration) {
	w.t.Helper()
	time.Sleep(after - time.Second)
	if w.going(pod) {
		w.t.Fatalf("%s left sooner than in %v", pod, after)
	}
	time.Sleep(2 * time.Second)
	if !w.going(pod) {
		w.t.Fatalf("%s has not left in %v", pod, after)
	}
}

// untilEvicted adds a taint to a node with a pod that tolerates it for a minute. The pod must leave
// half a minute after meanwhile.
func untilEvicted(t *testing.T, meanwhile func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, oneZone)
		w.runPatient("patient", "n1", 60)
		w.taintBy("n1", "memory")
		if !w.going("pn1") {
			t.Error("a pod that does not tolerate it stays")
		}
		meanwhile(w)
		leavesIn(w, "patient", 30*time.Second)
		if w.going("pn0") {
			t.Error("a pod of another node leaves")
		}
	})
}

// An operator's taint has no time.
func TestATaintOfAPersonEvicts(t *testing.T) {
	t.Run("in one term", func(t *testing.T) {
		untilEvicted(t, func(*world) { time.Sleep(30 * time.Second) })
	})
	t.Run("over terms", func(t *testing.T) {
		untilEvicted(t, func(w *world) {
			for range 6 {
				time.Sleep(5 * time.Second)
				w.abdicate()
				w.lead()
			}
		})
	})
	t.Run("without a leader", func(t *testing.T) {
		untilEvicted(t, func(w *world) {
			w.abdicate()
			time.Sleep(30 * time.Second)
			w.lead()
		})
	})
	t.Run("its value changes", func(t *testing.T) {
		untilEvicted(t, func(w *world) {
			time.Sleep(30 * time.Second)
			w.taintBy("n1", "disk")
			time.Sleep(30 * time.Second)
		})
	})
	t.Run("it was taken off", func(t *testing.T) {
		untilEvicted(t, func(w *world) {
			time.Sleep(30 * time.Second)
			w.taintBy("n1", "")
			time.Sleep(5 * time.Minute)
			w.taintBy("n1", "memory")
			time.Sleep(30 * time.Second)
		})
	})
	t.Run("a server that has just started leads", func(t *testing.T) {
		untilEvicted(t, func(w *world) {
			time.Sleep(30 * time.Second)
			w.abdicate()
			w.elect(nodelifecycle.Settings{})
			time.Sleep(30 * time.Second)
		})
	})
}

// A pod that comes to a node with a taint has its time from when it came: otherwise it would be
// evicted at once, and so would the one that takes its place.
func TestATaintOfAPersonAndAPodThatComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, oneZone)
		w.taintBy("n0", "memory")
		time.Sleep(time.Hour)
		w.runPatient("late", "n0", 60)
		leavesIn(w, "late", time.Minute)
	})
}

// The seconds of a toleration may be changed while they run.
func TestATolerationThatBecomesShorter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, oneZone)
		w.runPatient("patient", "n0", 3600)
		w.taintBy("n0", "memory")
		time.Sleep(30 * time.Second)
		pod := w.pod("patient")
		*pod.Spec.Tolerations[0].TolerationSeconds = 60
		if _, err := w.Client.CoreV1().Pods("d").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		leavesIn(w, "patient", 30*time.Second)
	})
}

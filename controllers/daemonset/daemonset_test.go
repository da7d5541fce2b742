package daemonset_test

import (
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/daemonset"
)

type world struct {
	*controllertest.Cluster
	t *testing.T
}

func newWorld(t *testing.T, nodes ...string) *world {
	w := &world{controllertest.New(t), t}
	for _, name := range nodes {
		w.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	one, two, labels := intstr.FromInt32(1), int32(2), map[string]string{"app": "x"}
	w.Add(&appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "ds"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels}, RevisionHistoryLimit: &two,
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v1"}}}},
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &one}},
		},
	})
	w.RunPods("nowhere", func(*corev1.Pod) bool { return true })
	return w
}

func (w *world) start() (stop func()) {
	w.t.Helper()
	c, err := daemonset.New(daemonset.Config{Informers: w.Informers})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.Start(c.Run)
}

func (w *world) get() *appsv1.DaemonSet {
	w.t.Helper()
	d, err := w.Client.AppsV1().DaemonSets("d").Get(w.t.Context(), "ds", metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

func (w *world) image(image string) {
	w.t.Helper()
	controllertest.Eventually(w.t, "the edit of the DaemonSet", func() bool {
		d := w.get()
		d.Spec.Template.Spec.Containers[0].Image = image
		_, err := w.Client.AppsV1().DaemonSets("d").Update(w.t.Context(), d, metav1.UpdateOptions{})
		return err == nil
	})
}

// serving waits until every one of the nodes has one available pod with an image.
func (w *world) serving(image string, nodes ...string) {
	w.t.Helper()
	controllertest.Eventually(w.t, "pods of "+image, func() bool {
		d := w.get()
		l, err := w.Client.CoreV1().Pods("d").List(w.t.Context(), metav1.ListOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
		on := map[string]bool{}
		for _, p := range l.Items {
			if p.Spec.Containers[0].Image == image {
				on[p.Spec.NodeName] = true
			}
		}
		for _, n := range nodes {
			if !on[n] {
				return false
			}
		}
		n := int32(len(nodes))
		return len(l.Items) == len(nodes) && d.Status.ObservedGeneration == d.Generation &&
			d.Status.NumberAvailable == n && d.Status.UpdatedNumberScheduled == n &&
			d.Status.DesiredNumberScheduled == n
	})
}

func (w *world) revisions() map[int64]bool {
	w.t.Helper()
	l, err := w.Client.AppsV1().ControllerRevisions("d").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[int64]bool{}
	for _, r := range l.Items {
		out[r.Revision] = true
	}
	return out
}

func TestRolloutsAndNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "n1", "n2", "n3")
		stop := w.start()
		w.serving("v1", "n1", "n2", "n3")
		w.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n4"}})
		w.serving("v1", "n1", "n2", "n3", "n4")

		w.image("v2")
		w.serving("v2", "n1", "n2", "n3", "n4")
		// Another leader goes on in the middle.
		w.image("v3")
		stop()
		w.start()
		w.serving("v3", "n1", "n2", "n3", "n4")
		// Back to an older template: its revision gets the highest number, and the oldest is
		// forgotten.
		w.image("v2")
		w.serving("v2", "n1", "n2", "n3", "n4")
		w.image("v4")
		w.serving("v4", "n1", "n2", "n3", "n4")
		controllertest.Eventually(t, "two old revisions", func() bool {
			r := w.revisions()
			return len(r) == 3 && r[5] && r[4] && r[3]
		})
		n, err := w.Client.CoreV1().Nodes().Get(t.Context(), "n2", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute}}
		if _, err := w.Client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.serving("v4", "n1", "n3", "n4")
	})
}

// A node that fails its pod each time gets the next one later and later.
func TestFailingPodsAreReplacedSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "n1")
		w.start()
		w.serving("v1", "n1")
		fails := 0
		for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			l, err := w.Client.CoreV1().Pods("d").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range l.Items {
				if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
					p.Status.Phase = corev1.PodFailed
					if _, err := w.Client.CoreV1().Pods("d").UpdateStatus(t.Context(), &p,
						metav1.UpdateOptions{}); err == nil {
						fails++
					}
				}
			}
		}
		if fails < 7 || fails > 12 {
			t.Errorf("the pod failed %d times in ten minutes", fails)
		}
	})
}

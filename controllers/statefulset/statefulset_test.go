package statefulset_test

import (
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/statefulset"
)

type world struct {
	*controllertest.Cluster
	t *testing.T
}

func newWorld(t *testing.T, replicas int32, edits ...func(*appsv1.StatefulSet)) *world {
	w := &world{controllertest.New(t), t}
	limit, labels := int32(1), map[string]string{"app": "x"}
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "web"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, ServiceName: "web",
			RevisionHistoryLimit: &limit,
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v1"}}}},
			UpdateStrategy:       appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}},
		},
	}
	for _, edit := range edits {
		edit(set)
	}
	w.Add(set)
	w.RunPods("n", func(p *corev1.Pod) bool { return p.Spec.Containers[0].Image != "broken" })
	return w
}

func (w *world) start() (stop func()) {
	w.t.Helper()
	c, err := statefulset.New(statefulset.Config{Informers: w.Informers})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.Start(c.Run)
}

func (w *world) get() *appsv1.StatefulSet {
	w.t.Helper()
	s, err := w.Client.AppsV1().StatefulSets("d").Get(w.t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) change(edit func(*appsv1.StatefulSet)) {
	w.t.Helper()
	controllertest.Eventually(w.t, "the edit of the StatefulSet", func() bool {
		s := w.get()
		edit(s)
		_, err := w.Client.AppsV1().StatefulSets("d").Update(w.t.Context(), s, metav1.UpdateOptions{})
		return err == nil
	})
}

func image(name string) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = name }
}

// done waits until all pods are available with an image.
func (w *world) done(name string, replicas int32) {
	w.t.Helper()
	controllertest.Eventually(w.t, "pods of "+name, func() bool {
		s := w.get()
		l, err := w.Client.CoreV1().Pods("d").List(w.t.Context(), metav1.ListOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
		for _, p := range l.Items {
			if p.Spec.Containers[0].Image != name {
				return false
			}
		}
		return len(l.Items) == int(replicas) && s.Status.ObservedGeneration == s.Generation &&
			s.Status.AvailableReplicas == replicas &&
			s.Status.UpdatedReplicas == replicas && s.Status.CurrentRevision == s.Status.UpdateRevision
	})
}

func (w *world) claims() []corev1.PersistentVolumeClaim {
	w.t.Helper()
	l, err := w.Client.CoreV1().PersistentVolumeClaims("d").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return l.Items
}

func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		stop := w.start()
		w.done("v1", 3)
		w.change(image("v2"))
		// Another leader goes on in the middle.
		stop()
		stop = w.start()
		w.done("v2", 3)
		w.change(image("v3"))
		w.done("v3", 3)
		controllertest.Eventually(t, "one old revision", func() bool {
			l, err := w.Client.AppsV1().ControllerRevisions("d").List(t.Context(), metav1.ListOptions{})
			return err == nil && len(l.Items) == 2
		})
		w.change(func(s *appsv1.StatefulSet) { s.Spec.Replicas = new(int32) })
		w.done("v3", 0)
		if n := len(w.claims()); n != 3 {
			t.Errorf("%d claims are left, not 3", n)
		}
		two := int32(2)
		w.change(func(s *appsv1.StatefulSet) { s.Spec.Replicas = &two })
		w.done("v3", 2)
		if n := len(w.claims()); n != 3 {
			t.Errorf("%d claims are there, not 3", n)
		}
		stop()
	})
}

// A revision that breaks its pod blocks the rollout and is reported. It is replaced when its pod is
// deleted.
func TestBrokenRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.start()
		w.done("v1", 2)
		w.change(image("broken"))
		time.Sleep(time.Hour)
		w.change(image("v2"))
		time.Sleep(time.Minute)
		if c := w.get().Status.Conditions; len(c) != 1 || c[0].Type != "RolloutBlocked" ||
			c[0].Status != corev1.ConditionTrue {
			t.Errorf("conditions %+v", c)
		}
		if err := w.Client.CoreV1().Pods("d").Delete(t.Context(), "web-1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.done("v2", 2)
		if c := w.get().Status.Conditions; len(c) != 0 {
			t.Errorf("conditions %+v", c)
		}
	})
}

// A pod whose node is dead stays, however long it takes, and so does its name.
func TestNoSecondPodOfAName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, func(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement })
		w.start()
		w.done("v1", 1)
		p, err := w.Client.CoreV1().Pods("d").Get(t.Context(), "web-0", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.Finalizers = []string{"example.com/dead-node"} // no kubelet confirms its end
		if p, err = w.Client.CoreV1().Pods("d").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := w.Client.CoreV1().Pods("d").Delete(t.Context(), "web-0", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		if now, err := w.Client.CoreV1().Pods("d").Get(t.Context(), "web-0", metav1.GetOptions{}); err != nil ||
			now.UID != p.UID {
			t.Errorf("the pod was replaced: %v, %v", now, err)
		}
	})
}

package deployment_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/deployment"
	"github.com/barque/barque/controllers/replicaset"
)

// world runs the Deployment and ReplicaSet controllers together, as they only make sense so.
type world struct {
	*controllertest.Cluster
	t    *testing.T
	stop func()
}

func newWorld(t *testing.T, ready func(*corev1.Pod) bool) *world {
	c := controllertest.New(t)
	sets, err := replicaset.New(replicaset.Config{Informers: c.Informers})
	if err != nil {
		t.Fatal(err)
	}
	deployments, err := deployment.New(deployment.Config{Informers: c.Informers})
	if err != nil {
		t.Fatal(err)
	}
	c.RunPods("node-1", ready)
	run := func(ctx context.Context, client kubernetes.Interface) error {
		other := make(chan error, 1)
		go func() { other <- sets.Run(ctx, client) }()
		err := deployments.Run(ctx, client)
		if e := <-other; err == nil {
			err = e
		}
		return err
	}
	return &world{Cluster: c, t: t, stop: c.Start(run)}
}

func always(*corev1.Pod) bool { return true }

func example(replicas int32, image string) *appsv1.Deployment {
	surge, unavailable := intstr.FromString("25%"), intstr.FromString("25%")
	deadline, history := int32(600), int32(10)
	labels := map[string]string{"app": "myapp"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "myapp",
			Annotations: map[string]string{"kubernetes.io/change-cause": image}},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}},
			},
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable},
			},
			ProgressDeadlineSeconds: &deadline, RevisionHistoryLimit: &history,
		},
	}
}

func (w *world) create(d *appsv1.Deployment) {
	w.t.Helper()
	if _, err := w.Client.AppsV1().Deployments("default").Create(w.t.Context(), d, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) get() *appsv1.Deployment {
	w.t.Helper()
	d, err := w.Client.AppsV1().Deployments("default").Get(w.t.Context(), "myapp", metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

// change edits the Deployment as a user would, over conflicts.
func (w *world) change(edit func(*appsv1.Deployment)) {
	w.t.Helper()
	controllertest.Eventually(w.t, "the edit of the Deployment", func() bool {
		d := w.get()
		edit(d)
		_, err := w.Client.AppsV1().Deployments("default").Update(w.t.Context(), d, metav1.UpdateOptions{})
		return err == nil
	})
}

func (w *world) sets() []appsv1.ReplicaSet {
	w.t.Helper()
	l, err := w.Client.AppsV1().ReplicaSets("default").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return l.Items
}

func (w *world) pods() []corev1.Pod {
	w.t.Helper()
	l, err := w.Client.CoreV1().Pods("default").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return l.Items
}

func (w *world) images() map[string]int {
	w.t.Helper()
	out := map[string]int{}
	for _, p := range w.pods() {
		out[p.Spec.Containers[0].Image]++
	}
	return out
}

func (w *world) done(image string, replicas int32) {
	w.t.Helper()
	controllertest.Eventually(w.t, "rollout of "+image, func() bool {
		d, images := w.get(), w.images()
		s := d.Status
		return s.ObservedGeneration == d.Generation && s.UpdatedReplicas == replicas && s.Replicas == replicas &&
			s.AvailableReplicas == replicas && len(images) == 1 && images[image] == int(replicas) &&
			reason(d, appsv1.DeploymentProgressing) == "NewReplicaSetAvailable"
	})
}

func reason(d *appsv1.Deployment, t appsv1.DeploymentConditionType) string {
	for _, c := range d.Status.Conditions {
		if c.Type == t {
			return c.Reason
		}
	}
	return ""
}

func TestPodsComeWithinTensOfMilliseconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, always)
		start := time.Now()
		w.create(example(3, "nginx:1"))
		controllertest.Eventually(t, "three pods", func() bool { return w.images()["nginx:1"] == 3 })
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("three pods after %v", took)
		}
		w.done("nginx:1", 3)
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("rolled out after %v", took)
		}
		d := w.get()
		if d.Annotations[deployment.Revision] != "1" ||
			reason(d, appsv1.DeploymentAvailable) != "MinimumReplicasAvailable" {
			t.Errorf("revision %q, available %q", d.Annotations[deployment.Revision],
				reason(d, appsv1.DeploymentAvailable))
		}
		if d.Generation > 1 {
			t.Errorf("generation %d: the controller's own bookkeeping is not a change of what is wanted", d.Generation)
		}
		if n := len(w.sets()); n != 1 {
			t.Errorf("%d ReplicaSets", n)
		}
	})
}

func TestRolloutUndoAndHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, always)
		d := example(4, "nginx:1")
		*d.Spec.RevisionHistoryLimit = 1
		w.create(d)
		w.done("nginx:1", 4)
		for i, image := range []string{"nginx:2", "nginx:1", "nginx:3"} { // the second is an undo
			w.change(func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = image })
			w.done(image, 4)
			if got, want := w.get().Annotations[deployment.Revision], []string{"2", "3", "4"}[i]; got != want {
				t.Errorf("revision after %s is %s, want %s", image, got, want)
			}
		}
		// nginx:2 was revision 2; nginx:1 was 1, then 3: with one kept, nginx:1 stays.
		controllertest.Eventually(t, "history of one", func() bool { return len(w.sets()) == 2 })
		for _, set := range w.sets() {
			switch set.Spec.Template.Spec.Containers[0].Image {
			case "nginx:1":
				if set.Annotations[deployment.Revision] != "3" ||
					set.Annotations["deployment.kubernetes.io/revision-history"] != "1" {
					t.Errorf("annotations of the undone: %v", set.Annotations)
				}
			case "nginx:2":
				t.Error("the oldest revision is still there")
			}
		}
	})
}

func TestScaleAndLostPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, always)
		w.create(example(2, "nginx:1"))
		w.done("nginx:1", 2)
		for _, n := range []int32{5, 1, 0, 3} {
			w.change(func(d *appsv1.Deployment) { d.Spec.Replicas = &n })
			controllertest.Eventually(t, "scale", func() bool {
				d := w.get()
				return w.images()["nginx:1"] == int(n) && d.Status.AvailableReplicas == n &&
					d.Status.ObservedGeneration == d.Generation
			})
		}
		pods, err := w.Client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Client.CoreV1().Pods("default").Delete(t.Context(), pods.Items[0].Name,
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "a new pod for the deleted one", func() bool {
			now, err := w.Client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(now.Items) != 3 {
				return false
			}
			for _, p := range now.Items {
				if p.Name == pods.Items[0].Name {
					return false
				}
			}
			return true
		})
		if got := w.get().Annotations[deployment.Revision]; got != "1" {
			t.Errorf("scaling made revision %s", got)
		}
	})
}

func TestPausedDeploymentScalesButDoesNotRoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, always)
		w.create(example(2, "nginx:1"))
		w.done("nginx:1", 2)
		w.change(func(d *appsv1.Deployment) {
			four := int32(4)
			d.Spec.Paused, d.Spec.Replicas = true, &four
			d.Spec.Template.Spec.Containers[0].Image = "nginx:2"
		})
		controllertest.Eventually(t, "scaled while paused", func() bool {
			d := w.get()
			return w.images()["nginx:1"] == 4 && reason(d, appsv1.DeploymentProgressing) == "DeploymentPaused" &&
				d.Status.ObservedGeneration == d.Generation
		})
		if len(w.sets()) != 1 {
			t.Fatal("a paused Deployment rolled out")
		}
		w.change(func(d *appsv1.Deployment) { d.Spec.Paused = false })
		w.done("nginx:2", 4)
	})
}

func TestRecreateNeverMixesTemplates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, always)
		d := example(3, "nginx:1")
		d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
		w.create(d)
		w.done("nginx:1", 3)
		there := make(map[string]string) // pods, and their images
		for _, p := range w.pods() {
			there[p.Name] = p.Spec.Containers[0].Image
		}
		changes, err := w.Client.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var watching sync.WaitGroup
		watching.Go(func() {
			for e := range changes.ResultChan() {
				p := e.Object.(*corev1.Pod)
				if there[p.Name] = p.Spec.Containers[0].Image; e.Type == watch.Deleted {
					delete(there, p.Name)
				}
				if images := slices.Compact(slices.Sorted(maps.Values(there))); len(images) > 1 {
					t.Errorf("pods of both templates at once: %v", there)
				}
			}
		})
		w.change(func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "nginx:2" })
		w.done("nginx:2", 3)
		synctest.Wait() // all changes have been looked at
		changes.Stop()
		watching.Wait()
		if len(there) != 3 {
			t.Errorf("the watch has shown %v at last", there)
		}
	})
}

func TestBadImageStopsRolloutAndDeadlineTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(p *corev1.Pod) bool { return !strings.HasPrefix(p.Spec.Containers[0].Image, "bad") })
		d := example(4, "nginx:1")
		*d.Spec.ProgressDeadlineSeconds = 60
		w.create(d)
		w.done("nginx:1", 4)
		w.change(func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "bad:1" })
		controllertest.Eventually(t, "deadline", func() bool {
			return reason(w.get(), appsv1.DeploymentProgressing) == "ProgressDeadlineExceeded"
		})
		// One of four may be unavailable, and one may be too many.
		controllertest.Eventually(t, "3 of the old pods, and 2 new ones", func() bool {
			now := w.images()
			return now["nginx:1"] == 3 && now["bad:1"] == 2
		})
		w.change(func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "nginx:1" })
		w.done("nginx:1", 4)
	})
}

func TestNewLeaderGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, always)
		w.create(example(3, "nginx:1"))
		w.done("nginx:1", 3)
		w.stop()
		w.change(func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "nginx:2" })
		// The same informers, a new term.
		sets, err := replicaset.New(replicaset.Config{Informers: w.Informers})
		if err != nil {
			t.Fatal(err)
		}
		deployments, err := deployment.New(deployment.Config{Informers: w.Informers})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 2)
		go func() { done <- sets.Run(ctx, w.Client) }()
		go func() { done <- deployments.Run(ctx, w.Client) }()
		w.done("nginx:2", 3)
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

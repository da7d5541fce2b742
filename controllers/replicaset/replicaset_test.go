package replicaset_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/replicaset"
)

func example(replicas int32) *appsv1.ReplicaSet {
	labels := map[string]string{"app": "x"}
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "rs"},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}},
		},
	}
}

func start(t *testing.T, c *controllertest.Cluster) {
	t.Helper()
	rs, err := replicaset.New(replicaset.Config{Informers: c.Informers})
	if err != nil {
		t.Fatal(err)
	}
	c.Start(rs.Run)
}

func podsOf(t *testing.T, c *controllertest.Cluster) []corev1.Pod {
	t.Helper()
	l, err := c.Client.CoreV1().Pods("d").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l.Items
}

func TestAdoptsAndReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t)
		c.Add(example(2))
		for _, name := range []string{"mine", "other"} {
			c.Add(
				&corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name,
						Labels: map[string]string{"app": map[string]string{"mine": "x", "other": "y"}[name]}}})
		}
		start(t, c)
		controllertest.Eventually(t, "adoption and one more pod", func() bool {
			owned := 0
			for _, p := range podsOf(t, c) {
				if ref := metav1.GetControllerOf(&p); ref != nil && ref.Name == "rs" {
					owned++
					if p.Name == "other" {
						t.Error("adopted a pod that does not match")
					}
				}
			}
			return owned == 2 && len(podsOf(t, c)) == 3
		})
		// A pod whose labels are changed is let go and replaced.
		pod, err := c.Client.CoreV1().Pods("d").Get(t.Context(), "mine", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod.Labels["app"] = "debug"
		if _, err := c.Client.CoreV1().Pods("d").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "release and replacement", func() bool {
			pod, err := c.Client.CoreV1().Pods("d").Get(t.Context(), "mine", metav1.GetOptions{})
			return err == nil && metav1.GetControllerOf(pod) == nil && len(podsOf(t, c)) == 4
		})
	})
}

func TestFailingCreationIsToldAndSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t)
		c.Add(example(50))
		tries := make(chan struct{}, 1000)
		c.Client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, kruntime.Object, error) {
			tries <- struct{}{}
			return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota"))
		})
		start(t, c)
		controllertest.Eventually(t, "the condition", func() bool {
			rs, err := c.Client.AppsV1().ReplicaSets("d").Get(t.Context(), "rs", metav1.GetOptions{})
			return err == nil && len(rs.Status.Conditions) == 1 && rs.Status.Conditions[0].Reason == "FailedCreate" &&
				strings.Contains(rs.Status.Conditions[0].Message, "exceeded quota")
		})
		if n := len(tries); n > 15 {
			t.Errorf("%d creations were tried for a failure that is bound to repeat", n)
		}
	})
}

// The API server's error about a refused pod has the pod's generated name in it.
func TestFailuresThatDifferAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t)
		c.Add(example(1))
		var tries atomic.Int32
		c.Client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, kruntime.Object, error) {
			return true, nil,
				apierrors.NewForbidden(corev1.Resource("pods"), fmt.Sprint("rs-", tries.Add(1)),
					errors.New("exceeded quota"))
		})
		start(t, c)
		time.Sleep(10 * time.Minute)
		if n := tries.Load(); n > 50 {
			t.Errorf("%d creations were tried in ten minutes", n)
		}
	})
}

// A new leader whose informer lags behind must not create the pods that its predecessor has just
// created.
func TestLaggingInformerMakesNoDuplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t)
		rs := example(3)
		c.Add(rs)
		controller := true
		hidden := &corev1.PodList{}
		for _, name := range []string{"p1", "p2", "p3"} {
			hidden.Items = append(hidden.Items, corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: "d", Name: name, UID: types.UID("hidden-" + name), ResourceVersion: "5000",
				Labels: map[string]string{"app": "x"},
				OwnerReferences: []metav1.OwnerReference{
					{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: rs.UID, Controller: &controller}},
			}})
		}
		asked := make(chan struct{}, 1000)
		// The API server has the pods; the informer's list, which has no selector, has them not.
		c.Client.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, kruntime.Object, error) {
			if list, ok := a.(clienttesting.ListActionImpl); ok && list.ListOptions.LabelSelector != "" {
				asked <- struct{}{}
				return true, hidden, nil
			}
			return false, nil, nil
		})
		created := make(chan struct{}, 1000)
		c.Client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, kruntime.Object, error) {
			created <- struct{}{}
			return false, nil, nil
		})
		start(t, c)
		<-asked
		time.Sleep(time.Minute) // it keeps waiting for its informer, and asks no more
		if len(asked) > 0 {
			t.Errorf("the API server was asked %d times more", len(asked))
		}
		select {
		case <-created:
			t.Error("pods were created twice")
		default:
		}
	})
}

// The same code serves a ReplicationController: creation, adoption by its kind, scaling down, and a
// status without the fields that the kind lacks.
func TestReplicationController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		labels, three := map[string]string{"app": "x"}, int32(3)
		c := controllertest.New(t)
		c.Add(&corev1.ReplicationController{
			ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "rc"},
			Spec: corev1.ReplicationControllerSpec{Replicas: &three, Selector: labels,
				Template: &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}}},
		})
		c.Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "orphan", Labels: labels}})
		c.RunPods("n", func(*corev1.Pod) bool { return true })
		r, err := replicaset.NewReplication(replicaset.Config{Informers: c.Informers})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(r.Run)
		controllers := c.Client.CoreV1().ReplicationControllers("d")
		get := func() *corev1.ReplicationController {
			rc, err := controllers.Get(t.Context(), "rc", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return rc
		}
		controllertest.Eventually(t, "three ready pods",
			func() bool { return get().Status.ReadyReplicas == 3 && get().Status.AvailableReplicas == 3 })
		for _, p := range podsOf(t, c) {
			if ref := metav1.GetControllerOf(&p); ref == nil || ref.Kind != "ReplicationController" ||
				ref.APIVersion != "v1" || ref.Name != "rc" {
				t.Errorf("pod %s is of %v", p.Name, ref)
			}
		}
		rc := get()
		one := int32(1)
		rc.Spec.Replicas = &one
		if _, err := controllers.Update(t.Context(), rc, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "one pod", func() bool {
			rc := get()
			return len(podsOf(t, c)) == 1 && rc.Status.Replicas == 1 && rc.Status.ObservedGeneration == rc.Generation &&
				rc.Spec.Selector["app"] == "x"
		})
	})
}

package podgc

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/controllers/controllertest"
)

func pod(name, node string, phase corev1.PodPhase, deleting bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name}, Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: phase}}
	if deleting {
		now := metav1.Now()
		// the tracker takes no deleting object without one
		p.DeletionTimestamp, p.Finalizers = &now, []string{"test/keep"}
	}
	return p
}

func TestDecide(t *testing.T) {
	const q = 40 * time.Second
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		node nodeView
		want fate
	}{
		"running":                      {pod("p", "n", corev1.PodRunning, false), nodeView{}, keep},
		"terminating on a living node": {pod("p", "n", corev1.PodRunning, true), nodeView{}, keep},
		"waiting for a node":           {pod("p", "", corev1.PodPending, false), nodeView{}, keep},
		"deleted before it got a node": {pod("p", "", corev1.PodPending, true), nodeView{}, remove},
		"its node has just gone": {pod("p", "n", corev1.PodRunning, false),
			nodeView{gone: true, goneFor: q - 1}, later},
		"its node is gone": {pod("p", "n", corev1.PodRunning, false),
			nodeView{gone: true, goneFor: q}, remove},
		"out of service, not asked to go": {pod("p", "n", corev1.PodRunning, false), nodeView{outOfService: true},
			keep},
		"out of service and asked to go": {pod("p", "n", corev1.PodRunning, true), nodeView{outOfService: true},
			remove},
		"finished, on a node that is no more": {pod("p", "n", corev1.PodFailed, false),
			nodeView{gone: true, goneFor: q}, remove},
	} {
		if got, _ := decide(c.pod, c.node, q); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestPodsOfRemovedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}},
			pod("p1", "n1", corev1.PodRunning, false), pod("p2", "n2", corev1.PodRunning, false))
		ctrl, err := New(Config{Informers: c.Informers})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		gone := func(name string) bool {
			_, err := c.Client.CoreV1().Pods("d").Get(t.Context(), name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}
		time.Sleep(time.Hour)
		if err := c.Client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(39 * time.Second)
		if gone("p1") {
			t.Error("removed within the quarantine")
		}
		time.Sleep(2 * time.Second)
		if !gone("p1") || gone("p2") {
			t.Errorf("p1 gone %v, p2 gone %v", gone("p1"), gone("p2"))
		}
	})
}

func TestTooManyFinished(t *testing.T) {
	c := controllertest.New(t)
	for i := range 10 {
		p := pod(fmt.Sprint("p", i), "n", corev1.PodSucceeded, false)
		p.CreationTimestamp = metav1.NewTime(time.Unix(int64(i), 0))
		if i == 9 {
			p.Status.Reason = "Evicted"
		}
		c.Add(p)
	}
	c.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	ctrl, err := New(Config{Informers: c.Informers, Finished: 7})
	if err != nil {
		t.Fatal(err)
	}
	c.Start(ctrl.Run)
	controllertest.Eventually(t, "seven are left", func() bool {
		l, err := c.Client.CoreV1().Pods("d").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(l.Items) != 7 {
			return false
		}
		for _, p := range l.Items {
			if p.Name == "p0" || p.Name == "p1" || p.Name == "p9" {
				t.Errorf("%s stays", p.Name)
			}
		}
		return true
	})
}

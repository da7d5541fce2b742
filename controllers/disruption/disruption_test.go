package disruption_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/disruption"
)

var labels = map[string]string{"app": "x"}

func budget(minAvailable, maxUnavailable *intstr.IntOrString) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "b"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: minAvailable, MaxUnavailable: maxUnavailable,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
		},
	}
}

func value(s string) *intstr.IntOrString {
	v := intstr.Parse(s)
	return &v
}

func ready(name string, owners ...metav1.OwnerReference) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, Labels: labels, OwnerReferences: owners},
		Spec:       corev1.PodSpec{NodeName: "n"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

func start(t *testing.T, c *controllertest.Cluster) {
	t.Helper()
	d, err := disruption.New(disruption.Config{Informers: c.Informers})
	if err != nil {
		t.Fatal(err)
	}
	c.Start(d.Run)
}

func get(t *testing.T, c *controllertest.Cluster) *policyv1.PodDisruptionBudget {
	t.Helper()
	b, err := c.Client.PolicyV1().PodDisruptionBudgets("d").Get(t.Context(), "b", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func allows(t *testing.T, c *controllertest.Cluster, what string, expected, desired, allowed int32) {
	t.Helper()
	controllertest.Eventually(t, what, func() bool {
		b := get(t, c)
		s := b.Status
		return s.ObservedGeneration == b.Generation && s.ExpectedPods == expected && s.DesiredHealthy == desired &&
			s.DisruptionsAllowed == allowed
	})
}

// An eviction in the form of the API server uses up a disruption at once. It becomes free again
// with a pod that replaces the evicted one, or after two minutes if the pod was never deleted.
func TestEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t, budget(value("2"), nil))
		for i := range 3 {
			c.Add(ready(fmt.Sprint("p", i)))
		}
		start(t, c)
		allows(t, c, "one disruption", 3, 2, 1)

		evict := func(name string) {
			t.Helper()
			b := get(t, c)
			b.Status.DisruptionsAllowed--
			b.Status.DisruptedPods = map[string]metav1.Time{name: metav1.Now()}
			if _, err := c.Client.PolicyV1().PodDisruptionBudgets("d").UpdateStatus(t.Context(), b,
				metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		evict("p0")
		time.Sleep(time.Minute)
		if s := get(t, c).Status; s.DisruptionsAllowed != 0 || s.CurrentHealthy != 2 || len(s.DisruptedPods) != 1 {
			t.Errorf("during the eviction: %+v", s)
		}
		now := int64(0)
		if err := c.Client.CoreV1().Pods("d").Delete(t.Context(), "p0",
			metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Fatal(err)
		}
		allows(t, c, "the pod is gone", 2, 2, 0)
		c.Add(ready("p3"))
		allows(t, c, "its replacement is ready", 3, 2, 1)

		evict("p1")
		time.Sleep(119 * time.Second)
		if s := get(t, c).Status; s.DisruptionsAllowed != 0 || len(s.DisruptedPods) != 1 {
			t.Errorf("before two minutes: %+v", s)
		}
		allows(t, c, "the pod stayed", 3, 2, 1)
	})
}

// Percentages are of the controllers' desired size: a Deployment counts once, with all its
// ReplicaSets.
func TestScales(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t, budget(nil, value("20%")))
		five, three, two, yes := int32(5), int32(3), int32(2), true
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "dep"},
			Spec: appsv1.DeploymentSpec{Replicas: &five}}
		c.Add(d)
		var owners []metav1.OwnerReference
		for _, name := range []string{"old", "new"} {
			set := &appsv1.ReplicaSet{
				ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, OwnerReferences: []metav1.OwnerReference{
					{APIVersion: "apps/v1", Kind: "Deployment", Name: "dep", UID: d.UID, Controller: &yes}}},
				Spec: appsv1.ReplicaSetSpec{Replicas: &three}}
			c.Add(set)
			owners = append(owners,
				metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name, UID: set.UID,
					Controller: &yes})
		}
		sts := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "sts"},
			Spec: appsv1.StatefulSetSpec{Replicas: &three}}
		rc := &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "rc"},
			Spec: corev1.ReplicationControllerSpec{Replicas: &two}}
		c.Add(sts)
		c.Add(rc)
		owners = append(owners,
			metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "sts", UID: sts.UID,
				Controller: &yes},
			metav1.OwnerReference{APIVersion: "v1", Kind: "ReplicationController", Name: "rc", UID: rc.UID,
				Controller: &yes})
		for i := range 9 {
			c.Add(ready(fmt.Sprint("p", i), owners[i%len(owners)]))
		}
		start(t, c)
		allows(t, c, "9 of 10 are ready, 8 are needed", 10, 8, 1)

		// A pod without a controller counts as healthy, and does not change the desired number.
		c.Add(ready("nobodys"))
		allows(t, c, "an unmanaged pod", 10, 8, 2)
	})
}

func TestStaleConditionIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t)
		pod := ready("p")
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler", Message: "m",
			LastTransitionTime: metav1.Now()})
		c.Add(pod)
		start(t, c)
		time.Sleep(119 * time.Second)
		if p, err := c.Client.CoreV1().Pods("d").Get(t.Context(), "p", metav1.GetOptions{}); err != nil ||
			p.Status.Conditions[1].Status != corev1.ConditionTrue {
			t.Errorf("before two minutes: %+v, %v", p, err)
		}
		controllertest.Eventually(t, "the condition is false", func() bool {
			p, err := c.Client.CoreV1().Pods("d").Get(t.Context(), "p", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			target := p.Status.Conditions[1]
			return target.Type == corev1.DisruptionTarget && target.Status == corev1.ConditionFalse &&
				target.Reason == "" && p.Status.Conditions[0].Status == corev1.ConditionTrue
		})
	})
}

// A budget follows the size of its pods' controller also when no pod follows it.
func TestWakesWhenTheScaleChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		two, yes := int32(2), true
		c := controllertest.New(t)
		set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "rs"},
			Spec: appsv1.ReplicaSetSpec{Replicas: &two,
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}}}}
		c.Add(set)
		owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: set.UID,
			Controller: &yes}
		c.Add(ready("p1", owner))
		c.Add(ready("p2", owner))
		c.Add(budget(nil, value("1")))
		start(t, c)
		controllertest.Eventually(t, "one of two may go",
			func() bool { return get(t, c).Status.DisruptionsAllowed == 1 })
		set = set.DeepCopy()
		set.Spec.Replicas = &[]int32{4}[0]
		set.ResourceVersion = ""
		if _, err := c.Client.AppsV1().ReplicaSets("d").Update(t.Context(), set, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "none of two that should be four", func() bool {
			status := get(t, c).Status
			return status.ExpectedPods == 4 && status.DisruptionsAllowed == 0
		})
	})
}

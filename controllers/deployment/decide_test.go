package deployment

import (
	"maps"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func deploy(replicas int32) *appsv1.Deployment {
	deadline, history := int32(600), int32(2)
	labels := map[string]string{"app": "x"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "n", UID: "d", Generation: 1,
			Annotations: map[string]string{"a": "b", corev1.LastAppliedConfigAnnotation: "secret"}},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template:                corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}},
			ProgressDeadlineSeconds: &deadline, RevisionHistoryLimit: &history,
		},
	}
}

func TestFirstStepCreatesTheReplicaSet(t *testing.T) {
	d := deploy(3)
	p := decide(observed{deployment: d}, now)
	if p.create == nil || *p.create.Spec.Replicas != 3 || p.revision != 1 {
		t.Fatalf("plan %+v", p)
	}
	hash := p.create.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	if hash == "" || p.create.Name != "d-"+hash ||
		p.create.Spec.Selector.MatchLabels[appsv1.DefaultDeploymentUniqueLabelKey] != hash ||
		p.create.Spec.Template.Labels[appsv1.DefaultDeploymentUniqueLabelKey] != hash {
		t.Errorf("the hash is not everywhere: %+v", p.create)
	}
	want := map[string]string{"a": "b", Revision: "1", desiredReplicas: "3", maxReplicas: "3"}
	if !maps.Equal(p.create.Annotations, want) {
		t.Errorf("annotations %v, want %v", p.create.Annotations, want)
	}
	if _, touched := d.Spec.Selector.MatchLabels[appsv1.DefaultDeploymentUniqueLabelKey]; touched {
		t.Error("the Deployment was changed")
	}
	if c := condition(&p.status, appsv1.DeploymentProgressing); c == nil || c.Reason != reasonCreated {
		t.Errorf("condition %+v", c)
	}
	if p.again < 600*time.Second || p.again > 602*time.Second {
		t.Errorf("looks again after %v", p.again)
	}
}

func TestNothingToDoIsNothingDone(t *testing.T) {
	d := deploy(3)
	p := decide(observed{deployment: d}, now)
	set := p.create
	set.UID, set.CreationTimestamp = "s", metav1.NewTime(now)
	set.Status = appsv1.ReplicaSetStatus{Replicas: 3, ReadyReplicas: 3, AvailableReplicas: 3}
	d.Annotations[Revision] = "1"
	d.Status = p.status
	p = decide(observed{deployment: d, sets: []*appsv1.ReplicaSet{set}}, now)
	d.Status = p.status
	again := decide(observed{deployment: d, sets: []*appsv1.ReplicaSet{set}}, now.Add(time.Hour))
	if again.create != nil || len(again.update) > 0 || len(again.remove) > 0 || again.revision != 0 ||
		again.again != 0 {
		t.Errorf("plan %+v", again)
	}
	if !slices.Equal(again.status.Conditions, d.Status.Conditions) {
		t.Errorf("conditions change by themselves: %+v to %+v", d.Status.Conditions, again.status.Conditions)
	}
}

func TestCollisionGivesAnotherName(t *testing.T) {
	d := deploy(1)
	first := decide(observed{deployment: d}, now).create.Name
	one := int32(1)
	d.Status.CollisionCount = &one
	if second := decide(observed{deployment: d}, now).create.Name; second == first {
		t.Errorf("both are %s", first)
	}
}

func TestRevisionsOnlyRise(t *testing.T) {
	a := inherit(nil, nil, 1)
	a = inherit(a, nil, 3)
	a = inherit(a, nil, 2)
	if a[Revision] != "3" || a[revisionHistory] != "1" {
		t.Errorf("annotations %v", a)
	}
	a = inherit(a, nil, 5)
	if a[Revision] != "5" || a[revisionHistory] != "1,3" {
		t.Errorf("annotations %v", a)
	}
}

func TestProgressDeadline(t *testing.T) {
	d := deploy(2)
	status := appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, ObservedGeneration: 1}
	setCondition(&status, appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonUpdated, "", now)
	d.Status = *status.DeepCopy()
	step := func(after time.Duration, ready int32) string {
		s := d.Status.DeepCopy()
		s.ReadyReplicas = ready
		progress(d, s, "rs", false, now.Add(after))
		d.Status = *s
		return condition(s, appsv1.DeploymentProgressing).Reason
	}
	if r := step(599*time.Second, 0); r != reasonUpdated {
		t.Errorf("before the deadline: %s", r)
	}
	if r := step(599*time.Second, 1); r != reasonUpdated { // a step forward starts the time anew
		t.Errorf("after progress: %s", r)
	}
	if r := step(1190*time.Second, 1); r != reasonUpdated {
		t.Errorf("before the renewed deadline: %s", r)
	}
	if r := step(1200*time.Second, 1); r != reasonTimedOut {
		t.Errorf("after the deadline: %s", r)
	}
	if r := step(1300*time.Second, 2); r != reasonUpdated {
		t.Errorf("after late progress: %s", r)
	}
}

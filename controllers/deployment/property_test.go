package deployment

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// stepper carries out the plans for a Deployment, and makes its ReplicaSets' pods exist and become
// available.
type stepper struct {
	d     *appsv1.Deployment
	sets  []*appsv1.ReplicaSet
	now   time.Time
	count int
}

// step takes one plan, and reports whether it wrote anything.
func (w *stepper) step() (wrote bool) {
	unfinished := map[*appsv1.ReplicaSet]int{}
	p := decide(observed{deployment: w.d, sets: w.sets, unfinished: unfinished}, w.now)
	if p.create != nil {
		w.count++
		p.create.UID, p.create.Generation, p.create.CreationTimestamp = types.UID(fmt.Sprint("set", w.count)), 1,
			metav1.NewTime(w.now)
		w.sets, wrote = append(w.sets, p.create), true
	}
	for _, c := range p.update {
		i := slices.IndexFunc(w.sets, func(s *appsv1.ReplicaSet) bool { return s.UID == c.set.UID })
		c.set.Generation++
		w.sets[i], wrote = c.set, true
	}
	for _, gone := range p.remove {
		w.sets, wrote = slices.DeleteFunc(w.sets, func(s *appsv1.ReplicaSet) bool { return s.UID == gone.UID }), true
	}
	if p.revision != 0 {
		w.d.Annotations[Revision], wrote = strconv.FormatInt(p.revision, 10), true
	}
	if !slices.EqualFunc(p.status.Conditions, w.d.Status.Conditions, func(a, b appsv1.DeploymentCondition) bool {
		return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason
	}) || p.status.Replicas != w.d.Status.Replicas || p.status.AvailableReplicas != w.d.Status.AvailableReplicas ||
		p.status.UpdatedReplicas != w.d.Status.UpdatedReplicas {
		wrote = true
	}
	w.d.Status = p.status
	for i := range w.sets {
		s := w.sets[i].DeepCopy()
		n := replicasOf(s)
		s.Status = appsv1.ReplicaSetStatus{Replicas: n, FullyLabeledReplicas: n, ReadyReplicas: n, AvailableReplicas: n,
			ObservedGeneration: s.Generation}
		w.sets[i] = s
	}
	w.now = w.now.Add(time.Second)
	return wrote
}

// After any changes, at any moment, a Deployment comes to rest. One ReplicaSet of its template has
// all pods, there are no more others than the history limit, and nothing is left to write.
func TestDecideConverges(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 5))
		w := &stepper{d: deploy(int32(r.IntN(6))), now: now}
		quarter := intstr.FromString("25%")
		w.d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &quarter, MaxUnavailable: &quarter}}
		for round := range 12 {
			switch r.IntN(5) {
			case 0:
				w.d.Spec.Replicas = new(int32(r.IntN(8)))
			case 1, 2:
				w.d.Spec.Template.Spec.NodeName = fmt.Sprint("template", r.IntN(5))
			case 3:
				w.d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
			case 4:
				surge, unavailable := intstr.FromInt32(int32(r.IntN(3))), intstr.FromInt32(1)
				w.d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
					RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable}}
			}
			w.d.Generation++
			most := 100
			if r.IntN(3) == 0 {
				most = r.IntN(4) // the next change comes in the middle
			}
			steps := 0
			for ; steps < most && w.step(); steps++ {
			}
			if steps == most && most < 100 {
				continue
			}
			if steps == 100 {
				t.Fatalf("seed %d, round %d: after %d plans there is more to write: %+v", seed, round, steps,
					w.d.Status)
			}
			full, others := 0, 0
			for _, s := range w.sets {
				if s.Spec.Template.Spec.NodeName == w.d.Spec.Template.Spec.NodeName {
					full++
					if replicasOf(s) != *w.d.Spec.Replicas {
						t.Fatalf("seed %d, round %d: the new ReplicaSet has %d of %d pods", seed, round, replicasOf(s),
							*w.d.Spec.Replicas)
					}
				} else if others++; replicasOf(s) != 0 {
					t.Fatalf("seed %d, round %d: an old ReplicaSet has %d pods", seed, round, replicasOf(s))
				}
			}
			if full != 1 || others > int(*w.d.Spec.RevisionHistoryLimit) {
				t.Fatalf("seed %d, round %d: %d ReplicaSets of the template, and %d others", seed, round, full, others)
			}
			if c := condition(&w.d.Status, appsv1.DeploymentProgressing); c == nil || c.Status != corev1.ConditionTrue {
				t.Fatalf("seed %d, round %d: it says %+v", seed, round, c)
			}
		}
	}
}

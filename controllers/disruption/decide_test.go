package disruption

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func budget(minAvailable, maxUnavailable string) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "b", Generation: 3}}
	if minAvailable != "" {
		v := intstr.Parse(minAvailable)
		b.Spec.MinAvailable = &v
	}
	if maxUnavailable != "" {
		v := intstr.Parse(maxUnavailable)
		b.Spec.MaxUnavailable = &v
	}
	return b
}

func pod(name string, ready bool) *corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name},
		Status: corev1.PodStatus{Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}},
	}
}

// many returns n pods of which the first are ready.
func many(n, ready int) []*corev1.Pod {
	var out []*corev1.Pod
	for i := range n {
		out = append(out, pod(fmt.Sprint("p", i), i < ready))
	}
	return out
}

func TestDecide(t *testing.T) {
	for _, c := range []struct {
		name                                string
		budget                              *policyv1.PodDisruptionBudget
		pods                                []*corev1.Pod
		scale                               int32
		expected, healthy, desired, allowed int32
	}{
		{"minAvailable, all well", budget("2", ""), many(3, 3), 0, 3, 3, 2, 1},
		{"minAvailable, just enough", budget("3", ""), many(3, 3), 0, 3, 3, 3, 0},
		{"minAvailable, one ill", budget("2", ""), many(3, 2), 0, 3, 2, 2, 0},
		{"minAvailable beyond what there is", budget("5", ""), many(3, 3), 0, 3, 3, 5, 0},
		{"minAvailable 0 without pods", budget("0", ""), nil, 0, 0, 0, 0, 0},
		{"minAvailable in percent is rounded up", budget("34%", ""), many(3, 3), 3, 3, 3, 2, 1},
		{"minAvailable in percent is of what is wanted", budget("50%", ""), many(3, 3), 10, 10, 3, 5, 0},
		{"minAvailable 100%", budget("100%", ""), many(3, 3), 3, 3, 3, 3, 0},
		{"maxUnavailable", budget("", "1"), many(3, 3), 3, 3, 3, 2, 1},
		{"maxUnavailable, one is missing", budget("", "1"), many(2, 2), 3, 3, 2, 2, 0},
		{"maxUnavailable above the number", budget("", "9"), many(3, 1), 3, 3, 1, 0, 1},
		{"maxUnavailable in percent is rounded up", budget("", "10%"), many(3, 3), 3, 3, 3, 2, 1},
		{"maxUnavailable 0", budget("", "0"), many(3, 3), 3, 3, 3, 3, 0},
		{"unmanaged pods only", budget("", "1"), many(3, 3), 0, 0, 3, 0, 0},
		{"no bound at all", budget("", ""), many(3, 3), 0, 0, 3, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := decide(c.budget, c.pods, c.scale, now)
			if err != nil {
				t.Fatal(err)
			}
			s := p.status
			if s.ExpectedPods != c.expected || s.CurrentHealthy != c.healthy || s.DesiredHealthy != c.desired ||
				s.DisruptionsAllowed != c.allowed {
				t.Errorf("expected %d, healthy %d, desired %d, allowed %d; want %d, %d, %d, %d",
					s.ExpectedPods, s.CurrentHealthy, s.DesiredHealthy, s.DisruptionsAllowed, c.expected, c.healthy,
					c.desired, c.allowed)
			}
			status, reason := metav1.ConditionFalse, policyv1.InsufficientPodsReason
			if c.allowed > 0 {
				status, reason = metav1.ConditionTrue, policyv1.SufficientPodsReason
			}
			if len(s.Conditions) != 1 || s.Conditions[0].Status != status || s.Conditions[0].Reason != reason ||
				s.Conditions[0].ObservedGeneration != 3 || s.ObservedGeneration != 3 {
				t.Errorf("status %+v", s)
			}
		})
	}
	if _, err := decide(budget("x%", ""), nil, 3, now); err == nil {
		t.Error("a percentage that is none is taken")
	}
}

// An evicted pod counts as lost until its deletion is seen, and again two minutes after it was not.
func TestEvictedPods(t *testing.T) {
	b := budget("1", "")
	b.Status.DisruptedPods = map[string]metav1.Time{
		"p0": metav1.NewTime(now.Add(-time.Minute)), "p1": metav1.NewTime(now.Add(-deletionTimeout)),
		"p2": metav1.NewTime(now), "gone": metav1.NewTime(now),
	}
	mine := many(4, 4)
	mine[2].DeletionTimestamp = &metav1.Time{Time: now}
	p, err := decide(b, mine, 0, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, counts := p.status.DisruptedPods["p0"]; !counts || len(p.status.DisruptedPods) != 1 {
		t.Errorf("disrupted: %v, want p0 alone", p.status.DisruptedPods)
	}
	if p.status.CurrentHealthy != 2 || p.status.DisruptionsAllowed != 1 {
		t.Errorf("healthy %d, allowed %d; want 2, 1", p.status.CurrentHealthy, p.status.DisruptionsAllowed)
	}
	if len(p.kept) != 1 || p.kept[0].Name != "p1" || p.again != time.Minute {
		t.Errorf("kept %v, again %v", p.kept, p.again)
	}
}

func TestFailureAllowsNothing(t *testing.T) {
	b := budget("1", "")
	p, err := decide(b, many(3, 3), 0, now)
	if err != nil {
		t.Fatal(err)
	}
	b.Status = p.status
	b.Status.ObservedGeneration = 2
	s := failed(b, fmt.Errorf("no such kind"), now)
	if s.DisruptionsAllowed != 0 || s.ObservedGeneration != 2 || s.CurrentHealthy != 3 ||
		len(s.Conditions) != 1 || s.Conditions[0].Reason != policyv1.SyncFailedReason ||
		s.Conditions[0].Message != "no such kind" {
		t.Errorf("status %+v", s)
	}
	if b.Status.DisruptionsAllowed != 2 || b.Status.Conditions[0].Reason != policyv1.SufficientPodsReason {
		t.Error("the budget itself was changed")
	}
	b.Status = s
	if again := failed(b, fmt.Errorf("no such kind"), now.Add(time.Hour)); !sameStatus(s, again) {
		t.Error("the same failure again changes the status")
	}
}

// The allowed disruptions never take the healthy pods below the desired number. decide's own output
// changes nothing at the next reconcile.
func TestDecideProperties(t *testing.T) {
	bounds := []string{"0", "1", "3", "7", "10%", "50%", "100%"}
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := budget(bounds[r.IntN(len(bounds))], "")
		if r.IntN(2) == 0 {
			b = budget("", bounds[r.IntN(len(bounds))])
		}
		b.Status.DisruptedPods = map[string]metav1.Time{}
		var mine []*corev1.Pod
		lost := 0
		for i := range r.IntN(10) {
			p := pod(fmt.Sprint("p", i), r.IntN(3) > 0)
			if r.IntN(5) == 0 {
				p.DeletionTimestamp = &metav1.Time{Time: now}
			}
			if r.IntN(4) == 0 {
				b.Status.DisruptedPods[p.Name] = metav1.NewTime(now.Add(-time.Duration(r.IntN(240)) * time.Second))
			}
			if p.DeletionTimestamp != nil {
				lost++
			}
			mine = append(mine, p)
		}
		scale := int32(r.IntN(12))
		p, err := decide(b, mine, scale, now)
		if err != nil {
			t.Fatal(err)
		}
		s := p.status
		if s.DisruptionsAllowed < 0 ||
			(s.DisruptionsAllowed > 0 && s.CurrentHealthy-s.DisruptionsAllowed < s.DesiredHealthy) {
			t.Fatalf("seed %d: %+v allows too much", seed, s)
		}
		if int(s.CurrentHealthy) > len(mine)-lost-len(s.DisruptedPods) {
			t.Fatalf("seed %d: %d healthy of %d, %d going, %d evicted", seed, s.CurrentHealthy, len(mine), lost,
				len(s.DisruptedPods))
		}
		if (p.again > 0) != (len(s.DisruptedPods) > 0) {
			t.Fatalf("seed %d: looks again after %v for %v", seed, p.again, s.DisruptedPods)
		}
		b.Status = s
		again, err := decide(b, mine, scale, now.Add(time.Duration(r.IntN(1000))*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		if len(s.DisruptedPods) == 0 && (!sameStatus(s, again.status) || len(again.kept) > 0) {
			t.Fatalf("seed %d: changes by itself from %+v to %+v", seed, s, again.status)
		}
	}
}

func TestStale(t *testing.T) {
	target := func(edit func(*corev1.Pod, *corev1.PodCondition)) *corev1.Pod {
		p := pod("p", true)
		c := corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
			Reason: "EvictionByEvictionAPI", LastTransitionTime: metav1.NewTime(now.Add(-time.Minute))}
		edit(p, &c)
		p.Status.Conditions = append(p.Status.Conditions, c)
		return p
	}
	for _, c := range []struct {
		name  string
		pod   *corev1.Pod
		found bool
		after time.Duration
	}{
		{"no condition", pod("p", true), false, 0},
		{"young", target(func(*corev1.Pod, *corev1.PodCondition) {}), true, time.Minute},
		{"old", target(func(_ *corev1.Pod, c *corev1.PodCondition) {
			c.LastTransitionTime = metav1.NewTime(now.Add(-time.Hour))
		}), true, 0},
		{"taken back", target(func(_ *corev1.Pod, c *corev1.PodCondition) { c.Status = corev1.ConditionFalse }), false,
			0},
		{"by the kubelet",
			target(func(_ *corev1.Pod, c *corev1.PodCondition) { c.Reason = corev1.PodReasonTerminationByKubelet }),
			false, 0},
		{"going", target(func(p *corev1.Pod, _ *corev1.PodCondition) { p.DeletionTimestamp = &metav1.Time{Time: now} }),
			false, 0},
		{"finished", target(func(p *corev1.Pod, _ *corev1.PodCondition) { p.Status.Phase = corev1.PodFailed }), false,
			0},
	} {
		if found, after := stale(c.pod, now); found != c.found || after != c.after {
			t.Errorf("%s: %v, %v; want %v, %v", c.name, found, after, c.found, c.after)
		}
	}
}

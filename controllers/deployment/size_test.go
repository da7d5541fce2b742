package deployment

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func rs(name string, size, available int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now)},
		Spec:       appsv1.ReplicaSetSpec{Replicas: &size},
		Status:     appsv1.ReplicaSetStatus{Replicas: size, AvailableReplicas: available},
	}
}

func TestLimits(t *testing.T) {
	pct := func(s string) *intstr.IntOrString { v := intstr.Parse(s); return &v }
	for _, c := range []struct {
		replicas           int32
		surge, unavailable string
		want               limits
	}{
		{4, "25%", "25%", limits{4, 1, 1}},
		{3, "25%", "25%", limits{3, 1, 0}}, // up, and down
		{10, "0", "3", limits{10, 0, 3}},
		{2, "0", "10%", limits{2, 0, 1}}, // both nothing: one may be missing
		{2, "1", "5", limits{2, 1, 2}},
		{0, "25%", "25%", limits{0, 0, 0}},
	} {
		d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &c.replicas, Strategy: appsv1.DeploymentStrategy{
			Type:          appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: pct(c.surge), MaxUnavailable: pct(c.unavailable)},
		}}}
		if got := limitsOf(d); got != c.want {
			t.Errorf("%d, %s, %s: got %+v, want %+v", c.replicas, c.surge, c.unavailable, got, c.want)
		}
	}
}

// A rollout from any state, with pods that start and die at random, keeps its limits at every step
// and ends.
func TestRollProperties(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 2))
		l := limits{desired: int32(r.IntN(12)), surge: int32(r.IntN(4)), unavailable: int32(r.IntN(4))}
		if l.surge == 0 && l.unavailable == 0 {
			l.unavailable = 1
		}
		l.unavailable = min(l.unavailable, l.desired)
		newest := rs("new", 0, 0)
		old := []*appsv1.ReplicaSet{}
		for i, left := 0, l.desired; i < 3 && left > 0; i++ {
			n := int32(r.IntN(int(left) + 1))
			if i == 2 {
				n = left
			}
			left -= n
			old = append(old, rs(fmt.Sprint("old", i), n, int32(r.IntN(int(n)+1))))
		}
		steps := 0
		for ; ; steps++ {
			if steps > 200 {
				t.Fatalf("seed %d: no end: %+v new %d/%d", seed, l, *newest.Spec.Replicas,
					newest.Status.AvailableReplicas)
			}
			before := totalAvailable(newest, old)
			want, size := roll(l, newest, old)
			if total := want.total() + size; total > max(l.most(), *newest.Spec.Replicas+sum(old)) {
				t.Fatalf("seed %d: %d pods of at most %d", seed, total, l.most())
			}
			if size < *newest.Spec.Replicas && size != l.desired {
				t.Fatalf("seed %d: the newest shrinks from %d to %d", seed, *newest.Spec.Replicas, size)
			}
			// A ReplicaSet gives up its unavailable pods first, so this many available ones stay.
			after := min(newest.Status.AvailableReplicas, size)
			for _, o := range old {
				if want[o] > *o.Spec.Replicas || want[o] < 0 {
					t.Fatalf("seed %d: old goes from %d to %d", seed, *o.Spec.Replicas, want[o])
				}
				after += min(o.Status.AvailableReplicas, want[o])
			}
			if after < before && after < l.least() {
				t.Fatalf("seed %d step %d: %d of %d available are left, at least %d are promised", seed, steps, after,
					before, l.least())
			}
			setSize(newest, size, r)
			for _, o := range old {
				setSize(o, want[o], r)
			}
			if sum(old) == 0 && *newest.Spec.Replicas == l.desired {
				break
			}
		}
	}
}

// setSize makes it so and lets some of the new pods become available, as time would.
func setSize(s *appsv1.ReplicaSet, size int32, r *rand.Rand) {
	*s.Spec.Replicas = size
	s.Status.AvailableReplicas = min(s.Status.AvailableReplicas, size)
	if up := size - s.Status.AvailableReplicas; up > 0 && s.Name == "new" {
		s.Status.AvailableReplicas += int32(r.IntN(int(up) + 1))
	}
}

func sum(sets []*appsv1.ReplicaSet) int32 {
	var n int32
	for _, s := range sets {
		n += *s.Spec.Replicas
	}
	return n
}

func totalAvailable(newest *appsv1.ReplicaSet, old []*appsv1.ReplicaSet) int32 {
	n := newest.Status.AvailableReplicas
	for _, s := range old {
		n += s.Status.AvailableReplicas
	}
	return n
}

func TestRollDoesNotTrustStaleAvailability(t *testing.T) {
	// The old set was scaled down by two pods; its status still counts them.
	old := rs("old", 2, 4)
	want, size := roll(limits{desired: 4, surge: 1, unavailable: 2}, rs("new", 3, 0), []*appsv1.ReplicaSet{old})
	if want[old] != 2 || size != 3 {
		t.Errorf("old goes to %d, new to %d: only two pods are available for sure", want[old], size)
	}
}

func TestRescale(t *testing.T) {
	annotated := func(s *appsv1.ReplicaSet, desired, most int32) *appsv1.ReplicaSet {
		s.Annotations = withSizes(nil, desired, most)
		return s
	}
	for _, c := range []struct {
		name    string
		l       limits
		newest  *appsv1.ReplicaSet
		old     *appsv1.ReplicaSet
		rolling bool
		want    [2]int32 // newest, old
	}{
		{"only the newest", limits{desired: 7}, rs("n", 3, 3), rs("o", 0, 0), true, [2]int32{7, 0}},
		{"only an old one, while paused", limits{desired: 7}, rs("n", 0, 0), rs("o", 3, 3), true, [2]int32{0, 7}},
		{"in proportion up", limits{desired: 20, surge: 4}, annotated(rs("n", 4, 4), 10, 12),
			annotated(rs("o", 8, 8), 10, 12), true, [2]int32{8, 16}},
		{"in proportion down", limits{desired: 5, surge: 1}, annotated(rs("n", 4, 4), 10, 12),
			annotated(rs("o", 8, 8), 10, 12), true, [2]int32{2, 4}},
		{"to nothing", limits{desired: 0}, annotated(rs("n", 4, 4), 10, 12), annotated(rs("o", 8, 8), 10, 12), true,
			[2]int32{0, 0}},
		{"the newest carries all", limits{desired: 4, surge: 1}, annotated(rs("n", 4, 4), 4, 5),
			annotated(rs("o", 1, 1), 4, 5), true, [2]int32{4, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := rescale(c.l, 10, c.newest, []*appsv1.ReplicaSet{c.old}, c.rolling)
			if got[c.newest] != c.want[0] || got[c.old] != c.want[1] {
				t.Errorf("newest %d, old %d; want %v", got[c.newest], got[c.old], c.want)
			}
		})
	}
}

func TestRescaleProperties(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 3))
		l := limits{desired: int32(r.IntN(20)), surge: int32(r.IntN(5))}
		var all []*appsv1.ReplicaSet
		for i := range 4 {
			n := int32(r.IntN(8))
			all = append(all, rs(fmt.Sprint(i), n, n))
		}
		got := rescale(l, int32(r.IntN(20)), all[0], all[1:], true)
		total := got.total()
		for _, s := range all {
			if got[s] < 0 {
				t.Fatalf("seed %d: %d pods", seed, got[s])
			}
		}
		if l.desired == 0 && total != 0 || total > l.most() {
			t.Fatalf("seed %d: %d pods in all, at most %d", seed, total, l.most())
		}
	}
}

package podgc

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// For any number of finished pods: after the excess is deleted there is none. No other pod is
// deleted, and no remaining pod is older than a deleted one, except for evicted ones.
func TestExcessConverges(t *testing.T) {
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 1))
		var all []*corev1.Pod
		for i := range r.IntN(20) {
			p := pod(fmt.Sprint("p", i), "n",
				[]corev1.PodPhase{corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed}[r.IntN(3)], r.IntN(5) == 0)
			p.CreationTimestamp = metav1.NewTime(time.Unix(r.Int64N(5), 0))
			if p.Status.Phase == corev1.PodFailed && r.IntN(3) == 0 {
				p.Status.Reason = "Evicted"
			}
			all = append(all, p)
		}
		threshold := r.IntN(8)
		victims := excess(all, threshold)
		left := slices.DeleteFunc(slices.Clone(all), func(p *corev1.Pod) bool { return slices.Contains(victims, p) })
		for _, v := range victims {
			if v.Status.Phase == corev1.PodRunning || v.DeletionTimestamp != nil {
				t.Fatalf("seed %d: pod %s goes, which is %s", seed, v.Name, v.Status.Phase)
			}
			for _, p := range left {
				if p.Status.Phase != corev1.PodRunning && p.DeletionTimestamp == nil && v.Status.Reason != "Evicted" &&
					p.CreationTimestamp.Before(&v.CreationTimestamp) {
					t.Fatalf("seed %d: pod %s goes before %s, which is older", seed, v.Name, p.Name)
				}
			}
		}
		if again := excess(left, threshold); len(again) > 0 {
			t.Fatalf("seed %d: a second look finds %d more", seed, len(again))
		}
	}
}

// A decision to remove a pod is final: it changes only with the pod's node or with time, and never
// to keep while its node is gone.
func TestFatesAreFinal(t *testing.T) {
	const q = 40 * time.Second
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 2))
		p := pod("p", []string{"", "n"}[r.IntN(2)], corev1.PodRunning, r.IntN(2) == 0)
		view := nodeView{gone: r.IntN(2) == 0, outOfService: r.IntN(2) == 0}
		last := keep
		for range 20 {
			what, _ := decide(p, view, q)
			if what < last {
				t.Fatalf("seed %d: %d after %d, of %+v on %+v", seed, what, last, p.ObjectMeta, view)
			}
			if last = what; view.gone {
				view.goneFor += time.Duration(r.IntN(10)) * time.Second
			}
		}
	}
}

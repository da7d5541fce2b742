package claim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// From any state, after one plan nothing is left to adopt or release, and all objects of the owner
// match. A terminating owner or object is left as it is.
func TestDecideConverges(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		some := func(n int, prefix string) (list []*corev1.Pod) {
			for i := range n {
				p := &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: fmt.Sprint(prefix, i),
						Labels: map[string]string{"app": []string{"x", "y"}[r.IntN(2)]}}}
				if r.IntN(4) == 0 {
					p.DeletionTimestamp = &metav1.Time{}
				}
				if r.IntN(5) == 0 {
					p.Namespace = "elsewhere"
				}
				list = append(list, p)
			}
			return list
		}
		owner := Owner{Object: &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "rs"}},
			Selector: labels.SelectorFromSet(labels.Set{"app": "x"})}
		if r.IntN(5) == 0 {
			owner.SetDeletionTimestamp(&metav1.Time{})
		}
		owned, orphans := some(r.IntN(6), "own"), some(r.IntN(6), "orphan")
		p := decide(owner, owned, orphans)
		if owner.GetDeletionTimestamp() != nil && len(p.adopt)+len(p.release) > 0 {
			t.Fatalf("seed %d: an owner that goes takes %d and lets go %d", seed, len(p.adopt), len(p.release))
		}
		for _, pod := range slices.Concat(p.adopt, p.release) {
			if pod.DeletionTimestamp != nil {
				t.Fatalf("seed %d: pod %s, which goes, is touched", seed, pod.Name)
			}
		}
		is := func(list []*corev1.Pod) func(*corev1.Pod) bool {
			return func(p *corev1.Pod) bool { return slices.Contains(list, p) }
		}
		owned = append(slices.DeleteFunc(owned, is(p.release)), p.adopt...)
		orphans = append(slices.DeleteFunc(orphans, is(p.adopt)), p.release...)
		again := decide(owner, owned, orphans)
		if len(again.adopt)+len(again.release) > 0 {
			t.Fatalf("seed %d: a second plan adopts %d and releases %d", seed, len(again.adopt), len(again.release))
		}
		if len(again.keep) != len(p.keep)+len(p.adopt) {
			t.Fatalf("seed %d: %d are kept and %d adopted, and then %d kept", seed, len(p.keep), len(p.adopt),
				len(again.keep))
		}
		for _, pod := range again.keep {
			if pod.Labels["app"] != "x" {
				t.Fatalf("seed %d: pod %s does not match", seed, pod.Name)
			}
		}
	}
}

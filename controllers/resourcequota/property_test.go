package resourcequota

import (
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
)

// A decided status is decided again. It has the count, or more for recent charges; when these are
// over, it has the count.
func TestDecideConverges(t *testing.T) {
	names := []corev1.ResourceName{"pods", "secrets", "requests.cpu", "count/configmaps"}
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		some := func() corev1.ResourceList {
			list := corev1.ResourceList{}
			for _, name := range names {
				if r.IntN(3) > 0 {
					list[name] = *resource.NewQuantity(r.Int64N(6), resource.DecimalSI)
				}
			}
			return list
		}
		q, counted, recent := newQuota(some(), some()), some(), recent{sum: some(), unknown: r.IntN(5) == 0}
		status, later := decide(q, counted, recent)
		for name := range q.Spec.Hard {
			is, want := status.Used[name], counted[name]
			if _, known := counted[name]; known && is.Cmp(want) < 0 {
				t.Fatalf("seed %d: %s of %s are used, and %s were counted", seed, is.String(), name, want.String())
			}
		}
		q.Status = status
		if again, still := decide(q, counted, recent); !equality.Semantic.DeepEqual(again, status) || still != later {
			t.Fatalf("seed %d: decided is %v, later %t, and then %v, later %t", seed, status.Used, later, again.Used,
				still)
		}
		recent.sum, recent.unknown = nil, false
		end, later := decide(q, counted, recent)
		q.Status = end
		if again, _ := decide(q, counted, recent); later || !equality.Semantic.DeepEqual(again, end) {
			t.Fatalf("seed %d: in the end decided is %v, later %t, and then %v", seed, end.Used, later, again.Used)
		}
		for name, want := range quotav1.Mask(counted, quotav1.ResourceNames(q.Spec.Hard)) {
			if is := end.Used[name]; is.Cmp(want) != 0 {
				t.Fatalf("seed %d: in the end %s of %s are used, and %s were counted", seed, is.String(), name,
					want.String())
			}
		}
	}
}

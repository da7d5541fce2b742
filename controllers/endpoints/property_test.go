package endpoints

import (
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

//lint:file-ignore SA1019 Endpoints are deprecated, and still read by clients that this is for.

// For any pods, in any order, and any earlier object: a second decision equals the first.
func TestDecideConverges(t *testing.T) {
	var is *corev1.Endpoints
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := service()
		s.Spec.PublishNotReadyAddresses = r.IntN(3) == 0
		if r.IntN(3) == 0 {
			s.Spec.ClusterIP = corev1.ClusterIPNone
		}
		var pods []*corev1.Pod
		n := r.IntN(8)
		if seed%100 == 0 {
			n = 2 * capacity
		}
		for i := range n {
			p := pod(i, int32(8080+r.IntN(2)), r.IntN(2) == 0)
			if r.IntN(8) == 0 {
				p.Status.Phase = corev1.PodFailed
			}
			pods = append(pods, p)
		}
		is = decide(s, pods, is) // from the object of an earlier round
		r.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
		if again := decide(s, pods, is); !equality.Semantic.DeepEqual(again, is) {
			t.Fatalf("seed %d: %+v became %+v", seed, is, again)
		}
		if fresh := decide(s, pods, nil); !equality.Semantic.DeepEqual(fresh.Subsets, is.Subsets) {
			t.Fatalf("seed %d: made anew it is %+v, and not %+v", seed, fresh.Subsets, is.Subsets)
		}
		sum := 0
		for _, subset := range is.Subsets {
			sum += len(subset.Addresses) + len(subset.NotReadyAddresses)
		}
		if sum > capacity || (is.Annotations[corev1.EndpointsOverCapacity] != "") != (sum == capacity && n > capacity) {
			t.Fatalf("seed %d: %d addresses of %d pods, annotations %v", seed, sum, n, is.Annotations)
		}
	}
}

package localprovisioner

import (
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/localpv"
)

func gigabytes(n int64) resource.Quantity { return *resource.NewQuantity(n<<30, resource.BinarySI) }

// For any volume and claim: after three acts nothing is left to do, and no volume was deleted while
// its claim exists.
func TestDecideVolumeConverges(t *testing.T) {
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 1))
		claim := newClaim(func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeName, c.Status.Phase = "pvc-c1", corev1.ClaimBound
			c.Spec.Resources.Requests[corev1.ResourceStorage] = gigabytes(1 + r.Int64N(4))
			c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: gigabytes(1 + r.Int64N(4))}
		})
		v := newVolume(newClaim(), defaultClass("local-path", nil), newNode())
		v.Status.Phase = []corev1.PersistentVolumePhase{corev1.VolumePending, corev1.VolumeBound,
			corev1.VolumeReleased}[r.IntN(3)]
		if r.IntN(3) == 0 {
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}
		if r.IntN(4) == 0 {
			v.DeletionTimestamp = &metav1.Time{}
		}
		if v.Status.Phase == corev1.VolumeReleased {
			claim = nil
		}
		hasNode := r.IntN(2) == 0
		for range 3 {
			switch decideVolume(v, claim, hasNode) {
			case deleteVolume:
				if claim != nil {
					t.Fatalf("seed %d: the volume of a claim is deleted", seed)
				}
				v.DeletionTimestamp = &metav1.Time{}
			case abandon:
				if hasNode {
					t.Fatalf("seed %d: abandoned with its node there", seed)
				}
				v.Finalizers = nil
			case grow:
				v.Spec.Capacity[corev1.ResourceStorage] = claim.Spec.Resources.Requests[corev1.ResourceStorage]
			case tellGrown:
				claim.Status.Capacity[corev1.ResourceStorage] = v.Spec.Capacity[corev1.ResourceStorage]
			}
		}
		if act := decideVolume(v, claim, hasNode); act != nothing {
			t.Fatalf("seed %d: after three acts act %d is left", seed, act)
		}
	}
}

// A claim whose node cannot have its volume gives the node up once, and then waits for another one.
func TestDecideClaimGivesUpOnce(t *testing.T) {
	class := defaultClass("local-path", nil)
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		node := newNode(func(n *corev1.Node) {
			if r.IntN(2) == 0 {
				n.Annotations = nil
			}
			if r.IntN(2) == 0 {
				n.Labels[corev1.LabelHostname] = "m"
			}
		})
		if r.IntN(4) == 0 {
			node = nil
		}
		claim := newClaim()
		p := decideClaim(claim, class, node)
		if (p.create != nil) == (p.failure != "") || p.reselect != (p.failure != "") {
			t.Fatalf("seed %d: %+v", seed, p)
		}
		if p.reselect {
			delete(claim.Annotations, selectedNodeAnnotation)
			if again := decideClaim(claim, class, node); again != (claimPlan{}) {
				t.Fatalf("seed %d: without a node %+v", seed, again)
			}
		}
	}
}

// A node's capacity falls by the capacity of each of its volumes, and never below zero.
func TestCapacitiesFollowVolumes(t *testing.T) {
	class := defaultClass("local-path", nil)
	left := func(volumes []*corev1.PersistentVolume) int64 {
		for _, c := range decideCapacities([]*storagev1.StorageClass{class}, []*corev1.Node{newNode()}, volumes) {
			return c.Capacity.Value()
		}
		t.Fatal("no capacity of a node with volumes")
		return 0
	}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		var volumes []*corev1.PersistentVolume
		for range r.IntN(6) {
			before := left(volumes)
			v := newVolume(newClaim(), class, newNode())
			size := gigabytes(r.Int64N(4))
			v.Spec.Capacity[corev1.ResourceStorage] = size
			mine := r.IntN(3) > 0
			if !mine {
				v.Labels[localpv.NodeLabel] = "another"
				size = gigabytes(0)
			}
			volumes = append(volumes, v)
			if got, want := left(volumes), max(0, before-size.Value()); got != want {
				t.Fatalf("seed %d: %d bytes are left, want %d", seed, got, want)
			}
		}
	}
}

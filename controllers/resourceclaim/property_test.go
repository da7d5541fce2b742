package resourceclaim

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// For any pod and claims: after three plans nothing is left to do, each claim was made once, and
// the pod has all of them.
func TestDecidePodConverges(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		pod := newPod()
		pod.Spec.ResourceClaims = nil
		claims := map[string]*resourcev1.ResourceClaim{}
		for i := range r.IntN(4) {
			name := fmt.Sprint("gpu", i)
			wish := corev1.PodResourceClaim{Name: name, ResourceClaimTemplateName: ptr.To("template")}
			if r.IntN(3) == 0 {
				wish = corev1.PodResourceClaim{Name: name, ResourceClaimName: ptr.To("by-name")}
				claims["by-name"] = &resourcev1.ResourceClaim{}
				claims["by-name"].Namespace, claims["by-name"].Name = "ns", "by-name"
			} else if r.IntN(3) == 0 { // made by an earlier term, and not in the pod's status yet
				c := newClaim(pod, name, &resourcev1.ResourceClaimTemplate{})
				c.Name = "earlier-" + name
				claims[c.Name] = c
			}
			pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, wish)
		}
		if r.IntN(2) == 0 {
			placed(pod)
		}
		for _, c := range claims {
			if r.IntN(2) == 0 {
				allocated(c)
			}
		}
		made := map[string]int{}
		step := func() (podPlan, bool) {
			var owned []*resourcev1.ResourceClaim
			for _, c := range claims {
				if ownerOf(c).UID == pod.UID {
					owned = append(owned, c)
				}
			}
			p, err := decidePod(pod, func(name string) *resourcev1.ResourceClaim { return claims[name] }, owned)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			return p, len(p.create)+len(p.names)+len(p.reserve) == 0
		}
		for range 3 {
			p, _ := step()
			for _, wish := range p.create {
				c := newClaim(pod, wish.Name, &resourcev1.ResourceClaimTemplate{})
				c.Name = "made-" + wish.Name
				claims[c.Name] = c
				made[wish.Name]++
			}
			for name, claim := range p.names {
				pod.Status.ResourceClaimStatuses = slices.DeleteFunc(pod.Status.ResourceClaimStatuses,
					func(s corev1.PodResourceClaimStatus) bool { return s.Name == name })
				pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses,
					corev1.PodResourceClaimStatus{Name: name, ResourceClaimName: &claim})
			}
			for _, c := range p.reserve {
				c.Status.ReservedFor = append(c.Status.ReservedFor,
					resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
			}
		}
		if p, done := step(); !done {
			t.Fatalf("seed %d: after three plans there is more to do: %+v", seed, p)
		}
		for name, n := range made {
			if n > 1 || claims["earlier-"+name] != nil {
				t.Fatalf("seed %d: claim %s was made %d times, and is there: %t", seed, name, n,
					claims["earlier-"+name] != nil)
			}
		}
		for _, wish := range pod.Spec.ResourceClaims {
			if wish.ResourceClaimTemplateName != nil &&
				!slices.ContainsFunc(pod.Status.ResourceClaimStatuses,
					func(s corev1.PodResourceClaimStatus) bool { return s.Name == wish.Name }) {
				t.Fatalf("seed %d: the pod does not know its claim %s", seed, wish.Name)
			}
		}
	}
}

var deletedAt = metav1.Unix(1, 0)

// For any claim and users: after one plan nothing is left to do, and no existing user was removed.
func TestDecideClaimConverges(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 2))
		pod := newPod(placed)
		owner := pod
		if r.IntN(3) == 0 {
			succeeded(pod)
		}
		if r.IntN(3) == 0 {
			owner = nil
		}
		c := newClaimOf(pod)
		for _, uid := range []types.UID{"uid-a", "uid-b", "uid-c"} {
			if r.IntN(2) == 0 {
				usedBy(uid)(c)
			}
		}
		if r.IntN(2) == 0 {
			allocated(c)
		}
		if r.IntN(4) == 0 {
			c.DeletionTimestamp = ptr.To(deletedAt)
		}
		gone := func(_ string, uid types.UID) bool { return uid == "uid-a" || uid == "uid-c" && seed%2 == 0 }
		p := decideClaim(c, gone, owner)
		for _, u := range c.Status.ReservedFor {
			if !gone(u.Name, u.UID) && !slices.Contains(p.users, u) {
				t.Fatalf("seed %d: user %s, which is there, is taken away", seed, u.Name)
			}
		}
		if len(p.users) > 0 && (p.deallocate || p.release || p.remove) {
			t.Fatalf("seed %d: a claim with users: %+v", seed, p)
		}
		if p.update {
			c.Status.ReservedFor = p.users
		}
		if p.deallocate {
			c.Status.Allocation = nil
		}
		if p.release {
			c.Finalizers = nil
		}
		if p.remove {
			c.DeletionTimestamp = ptr.To(deletedAt)
			// It was not used, so that its devices are taken back when it is deleted, and only
			// then.
			if next := decideClaim(c, gone, owner); next.release {
				c.Finalizers, c.Status.Allocation = nil, nil
			}
		}
		again := decideClaim(c, gone, owner)
		again.users = nil
		if !reflect.DeepEqual(again, claimPlan{}) {
			t.Fatalf("seed %d: a second plan after %+v: %+v", seed, p, again)
		}
	}
}

package resourceclaim

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// newPod asks for the claim "gpu", which is made from a template.
func newPod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid-p"},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("template")}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func named(claim string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &claim}}
	}
}

func byName(claim string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: &claim}
	}
}

func placed(p *corev1.Pod) { p.Spec.NodeName = "n" }

func succeeded(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }

func deleted(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) }

// newClaimOf is a claim that was made for a pod's claim "gpu".
func newClaimOf(pod *corev1.Pod, change ...func(*resourcev1.ResourceClaim)) *resourcev1.ResourceClaim {
	c := newClaim(pod, "gpu", &resourcev1.ResourceClaimTemplate{})
	c.Name, c.UID = "made", "uid-made"
	for _, f := range change {
		f(c)
	}
	return c
}

func allocated(c *resourcev1.ResourceClaim) {
	c.Finalizers = append(c.Finalizers, resourcev1.Finalizer)
	c.Status.Allocation = &resourcev1.AllocationResult{}
}

func usedBy(uids ...types.UID) func(*resourcev1.ResourceClaim) {
	return func(c *resourcev1.ResourceClaim) {
		for _, uid := range uids {
			c.Status.ReservedFor = append(c.Status.ReservedFor,
				resourcev1.ResourceClaimConsumerReference{Resource: "pods",
					Name: strings.TrimPrefix(string(uid), "uid-"), UID: uid})
		}
	}
}

func TestDecidePod(t *testing.T) {
	another := newClaimOf(newPod(func(p *corev1.Pod) { p.UID = "uid-other" }))
	for name, c := range map[string]struct {
		pod            *corev1.Pod
		claims         []*resourcev1.ResourceClaim
		create, name   bool
		reserve, fails bool
	}{
		"new": {pod: newPod(), create: true},
		"there it is": {pod: newPod(named("made")),
			claims: []*resourcev1.ResourceClaim{newClaimOf(newPod())}},
		"made and not named": {pod: newPod(), claims: []*resourcev1.ResourceClaim{newClaimOf(newPod())},
			name: true},
		"named and gone": {pod: newPod(named("made")), create: true},
		"somebody else's": {pod: newPod(named("made")), claims: []*resourcev1.ResourceClaim{another},
			create: true},
		"not needed": {
			pod: newPod(
				func(
					p *corev1.Pod,
				) {
					p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu"}}
				})},
		"being deleted": {pod: newPod(deleted)},
		"the user's": {pod: newPod(byName("made")),
			claims: []*resourcev1.ResourceClaim{newClaimOf(newPod())}},
		"the user's, to come": {pod: newPod(byName("made"))},
		"neither": {
			pod: newPod(func(p *corev1.Pod) { p.Spec.ResourceClaims[0].ResourceClaimTemplateName = nil }), fails: true},
		"placed by hand": {pod: newPod(named("made"), placed),
			claims: []*resourcev1.ResourceClaim{newClaimOf(newPod(), allocated)}, reserve: true},
		"placed, not allocated": {pod: newPod(named("made"), placed),
			claims: []*resourcev1.ResourceClaim{newClaimOf(newPod())}},
		"placed and known": {pod: newPod(named("made"), placed),
			claims: []*resourcev1.ResourceClaim{newClaimOf(newPod(), allocated, usedBy("uid-p"))}},
		"placed and ended": {pod: newPod(named("made"), placed, succeeded),
			claims: []*resourcev1.ResourceClaim{newClaimOf(newPod(), allocated)}},
		"the scheduler's to place": {pod: newPod(named("made")),
			claims: []*resourcev1.ResourceClaim{newClaimOf(newPod(), allocated)}},
	} {
		t.Run(name, func(t *testing.T) {
			find := func(name string) *resourcev1.ResourceClaim {
				if i := slices.IndexFunc(c.claims,
					func(c *resourcev1.ResourceClaim) bool { return c.Name == name }); i >= 0 {
					return c.claims[i]
				}
				return nil
			}
			owned := slices.DeleteFunc(slices.Clone(c.claims),
				func(claim *resourcev1.ResourceClaim) bool { return !metav1.IsControlledBy(claim, c.pod) })
			plan, err := decidePod(c.pod, find, owned)
			if (err != nil) != c.fails {
				t.Fatal(err)
			}
			if (len(plan.create) > 0) != c.create || (plan.names["gpu"] == "made") != c.name ||
				(len(plan.reserve) > 0) != c.reserve {
				t.Errorf("plan %+v; want create %t, name %t, reserve %t", plan, c.create, c.name, c.reserve)
			}
		})
	}
}

func TestDecideClaim(t *testing.T) {
	foreign := func(c *resourcev1.ResourceClaim) {
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourcev1.ResourceClaimConsumerReference{APIGroup: "example.com", Resource: "jobs", Name: "j",
				UID: "uid-gone"})
	}
	going := func(c *resourcev1.ResourceClaim) { c.DeletionTimestamp = ptr.To(metav1.Now()) }
	type want struct {
		users                               int
		update, deallocate, release, remove bool
	}
	for name, c := range map[string]struct {
		claim *resourcev1.ResourceClaim
		owner *corev1.Pod
		want  want
	}{
		"in use": {newClaimOf(newPod(), allocated, usedBy("uid-p")), newPod(), want{users: 1}},
		"one of two is gone": {newClaimOf(newPod(), allocated, usedBy("uid-p", "uid-gone")), newPod(),
			want{users: 1, update: true}},
		"the last one is gone": {newClaimOf(newPod(), allocated, usedBy("uid-gone")), nil,
			want{update: true, deallocate: true, release: true}},
		"a user of another kind": {newClaimOf(newPod(), allocated, foreign), nil, want{users: 1}},
		"the pod has ended": {newClaimOf(newPod(), allocated, usedBy("uid-gone")), newPod(succeeded),
			want{update: true, deallocate: true, release: true, remove: true}},
		"deleted before it was placed": {newClaimOf(newPod()), newPod(deleted), want{remove: true}},
		"another pod has the name": {newClaimOf(newPod()), newPod(func(p *corev1.Pod) { p.UID = "uid-new" }),
			want{remove: true}},
		"never used": {newClaimOf(newPod(), allocated), newPod(), want{}},
		"never used, and deleted": {newClaimOf(newPod(), allocated, going), newPod(),
			want{deallocate: true, release: true}},
		"in use, and deleted": {newClaimOf(newPod(), allocated, going, usedBy("uid-p")), newPod(),
			want{users: 1}},
		"not allocated, and deleted": {
			newClaimOf(newPod(), going,
				func(c *resourcev1.ResourceClaim) { c.Finalizers = []string{resourcev1.Finalizer} }), newPod(),
			want{release: true}},
		"pod is not known": {newClaimOf(newPod()), nil, want{}},
	} {
		t.Run(name, func(t *testing.T) {
			p := decideClaim(c.claim, func(_ string, uid types.UID) bool { return uid == "uid-gone" }, c.owner)
			if got := (want{len(p.users), p.update, p.deallocate, p.release, p.remove}); got != c.want {
				t.Errorf("plan %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestNewClaim(t *testing.T) {
	template := &resourcev1.ResourceClaimTemplate{Spec: resourcev1.ResourceClaimTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "1"}},
	}}
	c := newClaim(newPod(), "gpu", template)
	if c.GenerateName != "p-gpu-" || c.Labels["l"] != "1" || c.Annotations["a"] != "1" ||
		c.Annotations[resourcev1.PodResourceClaimAnnotation] != "gpu" {
		t.Errorf("claim %+v", c.ObjectMeta)
	}
	if len(template.Spec.Annotations) != 1 {
		t.Error("the template has changed")
	}
	long := newPod(func(p *corev1.Pod) { p.Name = strings.Repeat("p", 200) })
	name := newClaim(long, strings.Repeat("c", 63), template).GenerateName
	if len(name) > generatedLength || !strings.Contains(name, "ppp") || !strings.Contains(name, "ccc") {
		t.Errorf("generated name %q", name)
	}
}

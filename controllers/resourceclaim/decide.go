package resourceclaim

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/barque/barque/controllers/pods"
)

// podPlan has the missing claims and references of a pod.
type podPlan struct {
	// create are the pod's claims that have to be made from their templates, by their names in the
	// pod.
	create []corev1.PodResourceClaim
	// names are the objects for those that exist but are missing in the pod's status.
	names map[string]string
	// reserve are allocated claims that do not know the pod as a user.
	reserve []*resourcev1.ResourceClaim
}

// decidePod compares a pod with its claims. claim returns one by name, nil when there is none;
// owned are all that the pod controls.
func decidePod(
	pod *corev1.Pod, claim func(name string) *resourcev1.ResourceClaim, owned []*resourcev1.ResourceClaim,
) (podPlan, error) {
	plan := podPlan{names: map[string]string{}}
	if pod.DeletionTimestamp != nil {
		return plan, nil
	}
	for i := range pod.Spec.ResourceClaims {
		wish := &pod.Spec.ResourceClaims[i]
		name, made, err := resourceclaim.Name(pod, wish)
		if err != nil && !errors.Is(err, resourceclaim.ErrClaimNotFound) {
			return plan, fmt.Errorf("PodResourceClaim %s: %w", wish.Name, err)
		}
		if err == nil && name == nil {
			continue // none is needed
		}
		var is *resourcev1.ResourceClaim
		if err == nil {
			if is = claim(*name); is != nil && made && resourceclaim.IsForPod(pod, is, false) != nil {
				is = nil // another owner's
			}
		}
		if is == nil && wish.ResourceClaimTemplateName != nil {
			// The controller may have died between the claim and the pod's status.
			if is = madeFor(wish.Name, owned); is == nil {
				plan.create = append(plan.create, *wish)
				continue
			}
			plan.names[wish.Name] = is.Name
		}
		if is != nil && pod.Spec.NodeName != "" && !done(pod) && is.Status.Allocation != nil &&
			is.DeletionTimestamp == nil &&
			!resourceclaim.IsReservedForPod(pod, is, false) && resourceclaim.CanBeReserved(is) {
			plan.reserve = append(plan.reserve, is)
		}
	}
	return plan, nil
}

// madeFor returns the claim that was made for one claim of a pod.
func madeFor(name string, owned []*resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	for _, c := range owned {
		if of, ok := c.Annotations[resourcev1.PodResourceClaimAnnotation]; ok && of == name {
			return c
		}
	}
	return nil
}

// generatedLength bounds the name of a generated claim without its suffix.
const generatedLength = 57

// newClaim is the claim of a pod, as its template wants it.
func newClaim(pod *corev1.Pod, name string, template *resourcev1.ResourceClaimTemplate) *resourcev1.ResourceClaim {
	annotations := maps.Clone(template.Spec.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[resourcev1.PodResourceClaimAnnotation] = name
	prefix := pod.Name + "-" + name + "-"
	if whole := len(prefix); whole > generatedLength {
		// Both parts are shortened in proportion, so that something of each stays.
		prefix = pod.Name[:len(pod.Name)*generatedLength/whole] + "-" + name[:len(name)*generatedLength/whole]
	}
	controller := true
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, GenerateName: prefix, Labels: template.Spec.Labels, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: &controller}},
		},
		Spec: template.Spec.Spec,
	}
}

// claimPlan has the changes of a claim.
type claimPlan struct {
	// users is set when some must be removed, and has the remaining ones.
	users  []resourcev1.ResourceClaimConsumerReference
	update bool
	// deallocate takes the devices back, and release the finalizer.
	deallocate, release bool
	// remove deletes a claim without future users.
	remove bool
}

// decideClaim compares a claim with its users. gone reports whether a pod does not exist or has
// ended. owner is the pod that the claim was made for, nil when it is unknown or there is none.
func decideClaim(
	claim *resourcev1.ResourceClaim, gone func(name string, uid types.UID) bool, owner *corev1.Pod,
) claimPlan {
	var plan claimPlan
	plan.users = make([]resourcev1.ResourceClaimConsumerReference, 0, len(claim.Status.ReservedFor))
	for _, u := range claim.Status.ReservedFor {
		// Of users of other kinds nothing is known: they stay.
		if u.APIGroup != "" || u.Resource != "pods" || !gone(u.Name, u.UID) {
			plan.users = append(plan.users, u)
		}
	}
	plan.update = len(plan.users) < len(claim.Status.ReservedFor)
	if len(plan.users) > 0 {
		return plan
	}
	if slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
		// A claim that was never used stays allocated until it is deleted.
		unused := plan.update || claim.DeletionTimestamp != nil
		plan.deallocate = unused && claim.Status.Allocation != nil
		plan.release = unused
	}
	if claim.DeletionTimestamp == nil && owner != nil {
		plan.remove = owner.UID != ownerOf(claim).UID || done(owner)
	}
	return plan
}

// ownerOf names the pod that a claim was made for, with an empty UID when there is none.
func ownerOf(claim *resourcev1.ResourceClaim) metav1.OwnerReference {
	if ref := metav1.GetControllerOfNoCopy(claim); ref != nil && ref.APIVersion == "v1" && ref.Kind == "Pod" {
		return *ref
	}
	return metav1.OwnerReference{}
}

// done reports whether a pod will not run any more.
func done(pod *corev1.Pod) bool {
	return pods.Finished(pod) || pod.DeletionTimestamp != nil && pod.Spec.NodeName == ""
}

package statefulset

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// claimName is the name of the claim that a template gives the pod of an ordinal.
func claimName(set *appsv1.StatefulSet, template *corev1.PersistentVolumeClaim, ordinal int) string {
	return template.Name + "-" + set.Name + "-" + strconv.Itoa(ordinal)
}

// retention returns whether claims are deleted with their pods or the set; by default they are
// kept.
func retention(set *appsv1.StatefulSet) (whenScaled, whenDeleted bool) {
	r := set.Spec.PersistentVolumeClaimRetentionPolicy
	if r == nil {
		return false, false
	}
	return r.WhenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
		r.WhenDeleted == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
}

// claimsFor creates the missing claims of an ordinal's pod; pod is nil before the pod is created.
func (v *view) claimsFor(p *plan, ordinal int, pod *corev1.Pod) {
	for i := range v.set.Spec.VolumeClaimTemplates {
		t := &v.set.Spec.VolumeClaimTemplates[i]
		name := claimName(v.set, t, ordinal)
		if there := v.claims[name]; there != nil {
			if pod == nil {
				v.fixOwners(p, there, nil)
			}
			continue
		}
		claim := t.DeepCopy()
		claim.ObjectMeta = metav1.ObjectMeta{Namespace: v.set.Namespace, Name: name, Labels: maps.Clone(t.Labels),
			Annotations: claim.Annotations, Finalizers: claim.Finalizers}
		claim.Status = corev1.PersistentVolumeClaimStatus{}
		if claim.Labels == nil {
			claim.Labels = map[string]string{}
		}
		if v.set.Spec.Selector != nil {
			maps.Copy(claim.Labels, v.set.Spec.Selector.MatchLabels)
		}
		if _, withSet := retention(v.set); withSet {
			claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(v.set, kind)}
		}
		p.createClaims = append(p.createClaims, claim)
	}
}

// mayCreate reports whether the claims of an ordinal allow a pod. A terminating claim belongs to
// the pod before, and its data go with it.
func (v *view) mayCreate(p *plan, ordinal int) bool {
	scaled, _ := retention(v.set)
	for i := range v.set.Spec.VolumeClaimTemplates {
		claim := v.claims[claimName(v.set, &v.set.Spec.VolumeClaimTemplates[i], ordinal)]
		switch {
		case claim == nil:
		case claim.DeletionTimestamp != nil:
			p.events = append(p.events,
				event{corev1.EventTypeWarning, "FailedCreate",
					fmt.Sprintf("create Pod %s in StatefulSet %s failed error: pvc %s is being deleted",
						nameOf(v.set, ordinal), v.set.Name, claim.Name)})
			return false
		case scaled &&
			slices.ContainsFunc(claim.OwnerReferences,
				func(ref metav1.OwnerReference) bool { return names(ref, podKind, nameOf(v.set, ordinal)) }):
			return false // of a pod that is gone: the garbage collector is about to take it
		}
	}
	return true
}

// fixClaims gives the claims of a pod the owners that the retention policy asks for.
func (v *view) fixClaims(p *plan, pod *corev1.Pod) {
	ordinal, _ := ordinalOf(v.set, pod)
	for i := range v.set.Spec.VolumeClaimTemplates {
		if claim := v.claims[claimName(v.set, &v.set.Spec.VolumeClaimTemplates[i], ordinal)]; claim != nil {
			v.fixOwners(p, claim, pod)
		}
	}
}

// fixOwners sets the right owner of one claim. It is the set if claims are deleted with it, or the
// pod if that is surplus and claims are deleted with surplus pods. pod is nil before its creation.
// Claims of another controller, or of an earlier set or pod of the name, are left alone.
func (v *view) fixOwners(p *plan, claim *corev1.PersistentVolumeClaim, pod *corev1.Pod) {
	withPod, withSet := retention(v.set)
	condemned := pod != nil && slices.Contains(v.condemned, pod)
	var want []metav1.OwnerReference
	switch {
	case withPod && condemned:
		want = append(want, *metav1.NewControllerRef(pod, podKind))
	case withSet:
		want = append(want, *metav1.NewControllerRef(v.set, kind))
	}
	var others []metav1.OwnerReference
	var ours []metav1.OwnerReference
	for _, ref := range claim.OwnerReferences {
		switch {
		case names(ref, kind, v.set.Name):
			if ref.UID != v.set.UID {
				return
			}
			ours = append(ours, ref)
		case pod != nil && names(ref, podKind, pod.Name):
			if ref.UID != pod.UID {
				return
			}
			ours = append(ours, ref)
		default:
			if ref.Controller != nil && *ref.Controller && len(want) > 0 {
				v.conflict(p, claim)
				return
			}
			others = append(others, ref)
		}
	}
	if slices.EqualFunc(ours, want, func(a, b metav1.OwnerReference) bool {
		return a.UID == b.UID && a.Controller != nil && *a.Controller
	}) {
		return
	}
	claim = claim.DeepCopy()
	claim.OwnerReferences = append(others, want...)
	p.updateClaims = append(p.updateClaims, claim)
}

func (v *view) conflict(p *plan, claim *corev1.PersistentVolumeClaim) {
	p.events = append(p.events, event{corev1.EventTypeWarning, "ConflictingController",
		fmt.Sprintf(
			"PersistentVolumeClaim %s has a conflicting OwnerReference that acts as a managing controller, the retention policy is ignored for this claim", claim.Name)})
}

// names reports whether a reference is to an object of that kind and name, with any UID.
func names(ref metav1.OwnerReference, kind schema.GroupVersionKind, name string) bool {
	return ref.APIVersion == kind.GroupVersion().String() && ref.Kind == kind.Kind && ref.Name == name
}

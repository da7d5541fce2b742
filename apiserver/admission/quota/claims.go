package quota

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

var claims = corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")

// ofClass stands between the name of a storage class and that of a resource which is counted for
// its claims alone.
const ofClass = ".storageclass.storage.k8s.io/"

func newClaims(list quotav1.ListerForResourceFunc) *evaluator[corev1.PersistentVolumeClaim] {
	return &evaluator[corev1.PersistentVolumeClaim]{
		resource: claims, list: list, handles: handlesClaim, names: claimNames, usage: claimUsage, scope: claimInScope,
	}
}

func handlesClaim(a admission.Attributes) bool {
	switch a.GetSubresource() {
	case "":
		return a.GetOperation() == admission.Create || a.GetOperation() == admission.Update
	case "status":
		is, err := as[corev1.PersistentVolumeClaim](a.GetObject())
		was, err2 := as[corev1.PersistentVolumeClaim](a.GetOldObject())
		return err == nil && err2 == nil &&
			(!quotav1.Equals(claimUsage(is), claimUsage(was)) ||
				!slices.Equal(attributesClasses(is), attributesClasses(was)))
	}
	return false
}

func claimNames(names []corev1.ResourceName) []corev1.ResourceName {
	var matching []corev1.ResourceName
	for _, name := range names {
		plain := name
		if _, of, ok := strings.Cut(string(name), ofClass); ok {
			plain = corev1.ResourceName(of)
		}
		if name == countName(claims) || plain == corev1.ResourcePersistentVolumeClaims ||
			plain == corev1.ResourceRequestsStorage {
			matching = append(matching, name)
		}
	}
	return matching
}

func claimUsage(c *corev1.PersistentVolumeClaim) corev1.ResourceList {
	usage := corev1.ResourceList{countName(claims): count(1), corev1.ResourcePersistentVolumeClaims: count(1)}
	if size, ok := c.Spec.Resources.Requests[corev1.ResourceStorage]; ok {
		// While it grows, or could not, more may be allocated.
		if allocated, ok := c.Status.AllocatedResources[corev1.ResourceStorage]; ok && allocated.Cmp(size) > 0 {
			size = allocated
		}
		size = size.DeepCopy()
		size.RoundUp(0) // whole bytes, the unit of a quota
		usage[corev1.ResourceRequestsStorage] = size
	}
	if class := storagehelpers.GetPersistentVolumeClaimClass(c); class != "" {
		for _, name := range []corev1.ResourceName{corev1.ResourcePersistentVolumeClaims,
			corev1.ResourceRequestsStorage} {
			if q, ok := usage[name]; ok {
				usage[corev1.ResourceName(class+ofClass)+name] = q
			}
		}
	}
	return usage
}

func claimInScope(c *corev1.PersistentVolumeClaim, s corev1.ScopedResourceSelectorRequirement) (bool, error) {
	if s.ScopeName != corev1.ResourceQuotaScopeVolumeAttributesClass {
		return false, nil
	}
	return anyOf(s, attributesClasses(c)...)
}

// attributesClasses are the classes that the volume has, should have or is on its way to.
func attributesClasses(c *corev1.PersistentVolumeClaim) []string {
	names := sets.New(ptr.Deref(c.Spec.VolumeAttributesClassName, ""),
		ptr.Deref(c.Status.CurrentVolumeAttributesClassName, ""))
	if m := c.Status.ModifyVolumeStatus; m != nil {
		names.Insert(m.TargetVolumeAttributesClassName)
	}
	return sets.List(names.Delete(""))
}

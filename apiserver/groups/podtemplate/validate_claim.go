package podtemplate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/validation"
)

// ValidateOneSource demands that exactly one of the pointers of a union of volumes is set.
func ValidateOneSource(union any, at *field.Path) field.ErrorList { return oneSource(union, at) }

// ValidateHostPath checks a directory or file of a node.
func ValidateHostPath(h *corev1.HostPathVolumeSource, at *field.Path) field.ErrorList {
	return validateHostPath(h, at)
}

// ValidateAccessModes checks the modes in which a volume is or should be mounted; missing is the
// message when there are none.
func ValidateAccessModes(modes []corev1.PersistentVolumeAccessMode, missing string, at *field.Path) field.ErrorList {
	known := []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce,
		corev1.ReadWriteOncePod}
	var errs field.ErrorList
	if len(modes) == 0 {
		errs = append(errs, field.Required(at, missing))
	}
	pod, other := false, false
	for _, mode := range modes {
		if !slices.Contains(known, mode) {
			errs = append(errs, field.NotSupported(at, mode, known))
			continue
		}
		pod = pod || mode == corev1.ReadWriteOncePod
		other = other || mode != corev1.ReadWriteOncePod
	}
	if pod && other {
		errs = append(errs, field.Forbidden(at, "may not use ReadWriteOncePod with other access modes"))
	}
	return errs
}

// ValidateClaimSpec checks a persistent volume claim, or a template of one.
func ValidateClaimSpec(spec *corev1.PersistentVolumeClaimSpec, at *field.Path) field.ErrorList {
	errs := ValidateAccessModes(spec.AccessModes, "at least 1 access mode is required", at.Child("accessModes"))
	key := at.Child("resources").Key(string(corev1.ResourceStorage))
	if size, ok := spec.Resources.Requests[corev1.ResourceStorage]; !ok {
		errs = append(errs, field.Required(key, ""))
	} else if size.Sign() <= 0 {
		errs = append(errs, field.Invalid(key, size.String(), "must be greater than zero"))
	}
	errs = append(errs, validation.LabelSelector(spec.Selector, at.Child("selector"))...)
	if class := ptr.Deref(spec.StorageClassName, ""); class != "" {
		errs = append(errs, validation.DNSSubdomain(class, at.Child("storageClassName"))...)
	}
	errs = append(errs,
		validation.OptionalOneOf(spec.VolumeMode, at.Child("volumeMode"), corev1.PersistentVolumeBlock,
			corev1.PersistentVolumeFilesystem)...)
	if class := ptr.Deref(spec.VolumeAttributesClassName, ""); class != "" {
		errs = append(errs, validation.DNSSubdomain(class, at.Child("volumeAttributesClassName"))...)
	}
	return append(errs, validateDataSources(spec, at)...)
}

// validateDataSources checks the sources of a volume's initial content. Both fields are the same,
// unless the source is in another namespace, which only the newer one can have.
func validateDataSources(spec *corev1.PersistentVolumeClaimSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	old, ref := spec.DataSource, spec.DataSourceRef
	if old != nil {
		errs = append(errs, validateDataSource(old.APIGroup, old.Kind, old.Name, at.Child("dataSource"))...)
	}
	if ref == nil {
		return errs
	}
	errs = append(errs, validateDataSource(ref.APIGroup, ref.Kind, ref.Name, at.Child("dataSourceRef"))...)
	namespace := ptr.Deref(ref.Namespace, "")
	if namespace != "" {
		errs = append(errs, validation.DNSLabel(namespace, at.Child("dataSourceRef", "namespace"))...)
	}
	switch {
	case old == nil:
	case namespace != "":
		errs = append(errs,
			field.Invalid(at, at.Child("dataSource").String(),
				"may not be specified when dataSourceRef.namespace is specified"))
	case !apiequality.Semantic.DeepEqual(*old,
		corev1.TypedLocalObjectReference{APIGroup: ref.APIGroup, Kind: ref.Kind, Name: ref.Name}):
		errs = append(errs, field.Invalid(at, at.Child("dataSource").String(), "must match dataSourceRef"))
	}
	return errs
}

func validateDataSource(group *string, kind, name string, at *field.Path) field.ErrorList {
	errs := required(name, at.Child("name"))
	errs = append(errs, required(kind, at.Child("kind"))...)
	switch {
	case ptr.Deref(group, "") != "":
		errs = append(errs, validation.Check(*group, at.Child("apiGroup"), utilvalidation.IsDNS1123Subdomain)...)
	case kind != "PersistentVolumeClaim":
		errs = append(errs,
			field.Invalid(at, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup"))
	}
	return errs
}

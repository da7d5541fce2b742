// Package volume validates and defaults the description of a volume outside of a pod: the spec of
// a persistent volume, which an attachment may also carry inline. It is shared by the groups of
// both kinds.
package volume

import (
	"cmp"
	"path"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/validation"
)

// ValidateSpec checks the spec of the persistent volume of a name.
func ValidateSpec(spec *corev1.PersistentVolumeSpec, name string, at *field.Path) field.ErrorList {
	errs := podtemplate.ValidateAccessModes(spec.AccessModes, "", at.Child("accessModes"))
	errs = append(errs, validateCapacity(spec.Capacity, at.Child("capacity"))...)
	if p := spec.PersistentVolumeReclaimPolicy; p != "" {
		errs = append(errs, validation.Enum(p, at.Child("persistentVolumeReclaimPolicy"),
			corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRecycle,
			corev1.PersistentVolumeReclaimRetain)...)
	}
	if a := spec.NodeAffinity; a != nil {
		at := at.Child("nodeAffinity", "required")
		if a.Required == nil {
			errs = append(errs, field.Required(at, "must specify required node constraints"))
		} else {
			errs = append(errs, podtemplate.ValidateNodeSelector(a.Required, at)...)
		}
	}
	errs = append(errs, validateSource(spec, name, at)...)
	if h := spec.HostPath; h != nil && path.Clean(h.Path) == "/" &&
		spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		errs = append(errs,
			field.Forbidden(at.Child("persistentVolumeReclaimPolicy"),
				"may not be 'recycle' for a hostPath mount of '/'"))
	}
	if spec.StorageClassName != "" {
		errs = append(errs,
			validation.Check(spec.StorageClassName, at.Child("storageClassName"), utilvalidation.IsDNS1123Subdomain)...)
	}
	errs = append(errs,
		validation.OptionalOneOf(spec.VolumeMode, at.Child("volumeMode"), corev1.PersistentVolumeBlock,
			corev1.PersistentVolumeFilesystem)...)
	return append(errs, validateAttributesClass(spec, at)...)
}

// ValidateInlineSpec checks a spec in place of a PersistentVolume.
func ValidateInlineSpec(spec *corev1.PersistentVolumeSpec, at *field.Path) field.ErrorList {
	const inline = "in the context of inline volumes"
	var errs field.ErrorList
	for _, f := range []struct {
		child string
		given bool
	}{
		{"claimRef", spec.ClaimRef != nil},
		{"capacity", len(spec.Capacity) > 0},
		{"nodeAffinity", spec.NodeAffinity != nil},
		{"storageClassName", spec.StorageClassName != ""},
	} {
		if f.given {
			errs = append(errs, field.Forbidden(at.Child(f.child), "may not be specified "+inline))
		}
	}
	if spec.CSI == nil {
		errs = append(errs, field.Required(at.Child("csi"), "has to be specified "+inline))
	}
	errs = append(errs, podtemplate.ValidateAccessModes(spec.AccessModes, "", at.Child("accessModes"))...)
	if p := spec.PersistentVolumeReclaimPolicy; p != "" && p != corev1.PersistentVolumeReclaimRetain {
		errs = append(errs, field.Forbidden(at.Child("persistentVolumeReclaimPolicy"), "may only be Retain "+inline))
	}
	if m := spec.VolumeMode; m != nil && *m != corev1.PersistentVolumeFilesystem {
		errs = append(errs,
			field.Forbidden(at.Child("volumeMode"), "may not specify volumeMode other than Filesystem "+inline))
	}
	errs = append(errs, validateSource(spec, "", at)...)
	return append(errs, validateAttributesClass(spec, at)...)
}

func validateCapacity(capacity corev1.ResourceList, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(capacity) == 0 {
		errs = append(errs, field.Required(at, ""))
	}
	if _, ok := capacity[corev1.ResourceStorage]; !ok || len(capacity) > 1 {
		errs = append(errs,
			field.NotSupported(at, validation.SortedResources(capacity), []corev1.ResourceName{corev1.ResourceStorage}))
	}
	for _, name := range validation.SortedResources(capacity) {
		if q := capacity[name]; q.Sign() <= 0 {
			errs = append(errs, field.Invalid(at.Key(string(name)), q.String(), "must be greater than zero"))
		}
	}
	return errs
}

func validateAttributesClass(spec *corev1.PersistentVolumeSpec, at *field.Path) field.ErrorList {
	if spec.VolumeAttributesClassName == nil {
		return nil
	}
	var errs field.ErrorList
	if class := *spec.VolumeAttributesClassName; class == "" {
		errs = append(errs, field.Required(at.Child("volumeAttributesClassName"), "an empty string is disallowed"))
	} else {
		errs = append(errs,
			validation.Check(class, at.Child("volumeAttributesClassName"), utilvalidation.IsDNS1123Subdomain)...)
	}
	if spec.CSI == nil {
		errs = append(errs, field.Required(at.Child("csi"), "has to be specified when using volumeAttributesClassName"))
	}
	return errs
}

// Default sets the defaults of a spec.
func Default(spec *corev1.PersistentVolumeSpec) {
	if spec.PersistentVolumeReclaimPolicy == "" {
		spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	}
	setDefault(&spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	s := &spec.PersistentVolumeSource
	if h := s.HostPath; h != nil {
		setDefault(&h.Type, corev1.HostPathUnset)
	}
	if i := s.ISCSI; i != nil && i.ISCSIInterface == "" {
		i.ISCSIInterface = "default"
	}
	if r := s.RBD; r != nil {
		r.RBDPool = cmp.Or(r.RBDPool, "rbd")
		r.RadosUser = cmp.Or(r.RadosUser, "admin")
		r.Keyring = cmp.Or(r.Keyring, "/etc/ceph/keyring")
	}
	if a := s.AzureDisk; a != nil {
		setDefault(&a.CachingMode, corev1.AzureDataDiskCachingReadWrite)
		setDefault(&a.FSType, "ext4")
		setDefault(&a.ReadOnly, false)
		setDefault(&a.Kind, corev1.AzureSharedBlobDisk)
	}
	if io := s.ScaleIO; io != nil {
		io.StorageMode = cmp.Or(io.StorageMode, "ThinProvisioned")
		io.FSType = cmp.Or(io.FSType, "xfs")
	}
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = ptr.To(value)
	}
}

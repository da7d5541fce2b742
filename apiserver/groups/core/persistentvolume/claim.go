package persistentvolume

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/podtemplate/warn"
	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

// Claims declares claims to persistent volumes.
func Claims() resource.Resource {
	return &resource.Kind[corev1.PersistentVolumeClaim]{
		GroupVersion:  corev1.SchemeGroupVersion,
		Name:          "persistentvolumeclaims",
		Singular:      "persistentvolumeclaim",
		ShortNames:    []string{"pvc"},
		List:          &corev1.PersistentVolumeClaimList{},
		ReturnDeleted: true,
		Default:       podtemplate.DefaultClaim,
		Prepare:       prepareClaim,
		Validate:      validateClaim,
		Warnings:      claimWarnings,
		Status: &resource.Status[corev1.PersistentVolumeClaim]{
			Prepare: func(_ context.Context, c, old *corev1.PersistentVolumeClaim) {
				c.Status.HealthStatus = old.Status.HealthStatus // of an alpha feature, which is off
			},
			Validate: validateClaimStatus,
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Status", "string", "Whether the claim has a volume."),
			resource.Column("Volume", "string", "The volume of the claim."),
			resource.Column("Capacity", "string", "How large the volume is."),
			resource.Column("Access Modes", "string", "How the volume can be mounted."),
			resource.Column("StorageClass", "string", "The class of the volume."),
			resource.Column("VolumeAttributesClass", "string", "The class of the volume's attributes."),
			resource.Age(),
			resource.WideColumn("VolumeMode", "string", "Whether the volume is a file system or a block device."),
		},
		Row: func(c *corev1.PersistentVolumeClaim, now time.Time) []any {
			phase, capacity, modes := string(c.Status.Phase), "", ""
			if c.DeletionTimestamp != nil {
				phase = "Terminating"
			}
			if c.Spec.VolumeName != "" {
				size := c.Status.Capacity[corev1.ResourceStorage]
				capacity, modes = size.String(), formatAccessModes(c.Status.AccessModes)
			}
			return []any{c.Name, phase, c.Spec.VolumeName, capacity, modes,
				classOf(c.Annotations, c.Spec.StorageClassName),
				ptr.Deref(c.Spec.VolumeAttributesClassName, unset), resource.Since(c.CreationTimestamp, now),
				string(ptr.Deref(c.Spec.VolumeMode, unset))}
		},
	}
}

// prepareClaim makes the two fields for the source of a volume equal. The older one knows claims
// and snapshots only; sources in other namespaces are of an alpha feature, which is off.
func prepareClaim(_ context.Context, c, old *corev1.PersistentVolumeClaim) {
	spec := &c.Spec
	var had corev1.PersistentVolumeClaimSpec
	if old != nil {
		had = old.Spec
	}
	if r := spec.DataSourceRef; r != nil && ptr.Deref(r.Namespace, "") != "" && had.DataSourceRef == nil {
		spec.DataSourceRef = nil
	}
	if had.DataSource == nil && had.DataSourceRef == nil && spec.DataSourceRef == nil &&
		!isClaimOrSnapshot(spec.DataSource) {
		spec.DataSource = nil
	}
	switch s, r := spec.DataSource, spec.DataSourceRef; {
	case s != nil && r == nil:
		spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: s.APIGroup, Kind: s.Kind, Name: s.Name}
	case s == nil && r != nil && ptr.Deref(r.Namespace, "") == "":
		spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: r.APIGroup, Kind: r.Kind, Name: r.Name}
	}
}

func isClaimOrSnapshot(s *corev1.TypedLocalObjectReference) bool {
	if s == nil {
		return false
	}
	group := ptr.Deref(s.APIGroup, "")
	return group == "" && s.Kind == "PersistentVolumeClaim" ||
		group == "snapshot.storage.k8s.io" && s.Kind == "VolumeSnapshot"
}

func claimWarnings(_ context.Context, c, _ *corev1.PersistentVolumeClaim) []string {
	var warnings []string
	if _, ok := c.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		warnings = append(warnings, fmt.Sprintf(`%s: deprecated since v1.8; use "storageClassName" attribute instead`,
			field.NewPath("metadata", "annotations").Key(corev1.BetaStorageClassAnnotation)))
	}
	return append(warnings, warn.Claim(&c.Spec, field.NewPath("spec"))...)
}

func validateClaim(_ context.Context, c, old *corev1.PersistentVolumeClaim) field.ErrorList {
	errs := validation.Meta(c, old, true, validation.SubdomainName)
	errs = append(errs, podtemplate.ValidateClaimSpec(&c.Spec, field.NewPath("spec"))...)
	if old != nil {
		errs = append(errs, validateClaimChange(c, old, field.NewPath("spec"))...)
	}
	return errs
}

// validateClaimChange lets a claim change in four ways only: it gets its volume, it gets its class,
// and once bound it may request more space and other attributes.
func validateClaimChange(c, old *corev1.PersistentVolumeClaim, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	spec, was := c.Spec.DeepCopy(), old.Spec.DeepCopy()
	if was.VolumeName == "" {
		was.VolumeName = spec.VolumeName
	}
	class, annotated := old.Annotations[corev1.BetaStorageClassAnnotation]
	now, still := c.Annotations[corev1.BetaStorageClassAnnotation]
	named := was.StorageClassName == nil && spec.StorageClassName != nil &&
		(!annotated || *spec.StorageClassName == class)
	if moved := named && annotated && (!still || now == class); !moved && now != class {
		errs = append(errs,
			field.Invalid(field.NewPath("metadata", "annotations", corev1.BetaStorageClassAnnotation), now,
				"field is immutable"))
	}
	if named {
		spec.StorageClassName = nil
	}
	if c.Status.Phase == corev1.ClaimBound {
		if spec.Resources.Requests != nil {
			spec.Resources.Requests[corev1.ResourceStorage] = was.Resources.Requests[corev1.ResourceStorage]
		}
		spec.VolumeAttributesClassName = was.VolumeAttributesClassName
	}
	if !apiequality.Semantic.DeepEqual(spec, was) {
		errs = append(errs, field.Forbidden(at, fmt.Sprintf(
			"spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n%v", diff.Diff(*was, *spec))))
	}
	size, before, has := c.Spec.Resources.Requests[corev1.ResourceStorage],
		old.Spec.Resources.Requests[corev1.ResourceStorage], old.Status.Capacity[corev1.ResourceStorage]
	if size.Cmp(before) < 0 && size.Cmp(has) <= 0 {
		errs = append(errs,
			field.Forbidden(at.Child("resources", "requests", "storage"), "field can not be less than status.capacity"))
	}
	errs = append(errs, validation.Immutable(c.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode"))...)
	return append(errs, validateAttributesChange(c, old, at.Child("volumeAttributesClassName"))...)
}

func validateAttributesChange(c, old *corev1.PersistentVolumeClaim, at *field.Path) field.ErrorList {
	class := c.Spec.VolumeAttributesClassName
	if old.Status.CurrentVolumeAttributesClassName == nil || ptr.Equal(class, old.Spec.VolumeAttributesClassName) {
		return nil
	}
	switch {
	case class == nil:
		return field.ErrorList{
			field.Forbidden(at, "update to nil is forbidden when status.currentVolumeAttributesClassName is not nil")}
	case *class == "":
		return field.ErrorList{
			field.Forbidden(at,
				"update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil")}
	}
	return nil
}

func validateClaimStatus(_ context.Context, c, _ *corev1.PersistentVolumeClaim) field.ErrorList {
	errs := requireVersion(c.ResourceVersion)
	at := field.NewPath("status")
	for _, name := range validation.SortedResources(c.Status.Capacity) {
		errs = append(errs, notNegative(c.Status.Capacity, name, at.Child("capacity"))...)
	}
	known := []corev1.ClaimResourceStatus{
		corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimControllerResizeInfeasible,
		corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress,
		corev1.PersistentVolumeClaimNodeResizeInfeasible,
	}
	slices.Sort(known)
	for _, name := range validation.SortedKeys(c.Status.AllocatedResourceStatuses) {
		at := at.Child("allocatedResourceStatuses")
		errs = append(errs, validateAllocatedName(name, at)...)
		if !slices.Contains(known, c.Status.AllocatedResourceStatuses[name]) {
			errs = append(errs, field.NotSupported(at, c.Status.AllocatedResourceStatuses[name], known))
		}
	}
	for _, name := range validation.SortedResources(c.Status.AllocatedResources) {
		at := at.Child("allocatedResources")
		if wrong := validateAllocatedName(name, at); len(wrong) > 0 {
			errs = append(errs, wrong...)
			continue
		}
		errs = append(errs, notNegative(c.Status.AllocatedResources, name, at)...)
	}
	return errs
}

func notNegative(list corev1.ResourceList, name corev1.ResourceName, at *field.Path) field.ErrorList {
	if q := list[name]; q.Sign() < 0 {
		return field.ErrorList{field.Invalid(at.Key(string(name)), q.Value(), "must be a valid resource quantity")}
	}
	return nil
}

// validateAllocatedName checks a name under which space is accounted: of Kubernetes' own only one.
func validateAllocatedName(name corev1.ResourceName, at *field.Path) field.ErrorList {
	errs := validation.QualifiedName(string(name), at)
	if len(errs) == 0 && validation.IsNativeResource(name) && name != corev1.ResourceStorage {
		errs = append(errs, field.NotSupported(at, name, []corev1.ResourceName{corev1.ResourceStorage}))
	}
	return errs
}

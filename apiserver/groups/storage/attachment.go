package storage

import (
	"context"
	"math"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/groups/volume"
	"github.com/barque/barque/apiserver/resource"
)

// Limits of the reports about an attachment.
const (
	largestMetadata = 256 << 10
	longestMessage  = 1024
)

func attachments() resource.Resource {
	return &resource.Kind[storagev1.VolumeAttachment]{
		GroupVersion:    version,
		Name:            "volumeattachments",
		Singular:        "volumeattachment",
		ClusterScoped:   true,
		List:            &storagev1.VolumeAttachmentList{},
		ReturnDeleted:   true,
		VersionedUpdate: true,
		Validate:        validateAttachment,
		Status: &resource.Status[storagev1.VolumeAttachment]{
			Prepare: func(_ context.Context, a, old *storagev1.VolumeAttachment) {
				metav1.ResetObjectMetaForStatus(&a.ObjectMeta, &old.ObjectMeta)
			},
			Validate: validateAttachment,
			Reset:    []fieldpath.Path{fieldpath.MakePathOrDie("metadata")},
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Attacher", "string", "The driver that attaches the volume."),
			resource.Column("PV", "string", "The volume."),
			resource.Column("Node", "string", "The node that the volume is attached to."),
			resource.Column("Attached", "boolean", "Whether the volume is attached."),
			resource.Age(),
		},
		Row: func(a *storagev1.VolumeAttachment, now time.Time) []any {
			return []any{a.Name, a.Spec.Attacher, ptr.Deref(a.Spec.Source.PersistentVolumeName, ""), a.Spec.NodeName,
				a.Status.Attached, resource.Since(a.CreationTimestamp, now)}
		},
	}
}

func validateAttachment(_ context.Context, a, old *storagev1.VolumeAttachment) field.ErrorList {
	errs := validation.Meta(a, old, false, validation.SubdomainName)
	at := field.NewPath("spec")
	errs = append(errs, validation.DriverName(a.Spec.Attacher, at.Child("attacher"))...)
	errs = append(errs, validateSource(&a.Spec.Source, at.Child("source"))...)
	errs = append(errs, validation.Check(a.Spec.NodeName, at.Child("nodeName"), utilvalidation.IsDNS1123Subdomain)...)
	if old != nil {
		errs = append(errs, validation.Immutable(a.Spec, old.Spec, at)...)
	}
	at = field.NewPath("status")
	errs = append(errs, limitSize(a.Status.AttachmentMetadata, largestMetadata, at.Child("attachmentMetadata"))...)
	errs = append(errs, validateVolumeError(a.Status.AttachError, at.Child("attachError"))...)
	return append(errs, validateVolumeError(a.Status.DetachError, at.Child("detachError"))...)
}

func validateSource(s *storagev1.VolumeAttachmentSource, at *field.Path) field.ErrorList {
	const one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
	switch {
	case s.InlineVolumeSpec == nil && s.PersistentVolumeName == nil:
		return field.ErrorList{field.Required(at, one)}
	case s.InlineVolumeSpec != nil && s.PersistentVolumeName != nil:
		return field.ErrorList{field.Forbidden(at, one)}
	case s.InlineVolumeSpec != nil:
		return volume.ValidateInlineSpec(s.InlineVolumeSpec, at.Child("inlineVolumeSpec"))
	case *s.PersistentVolumeName == "":
		return field.ErrorList{
			field.Required(at.Child("persistentVolumeName"), "must specify non empty persistentVolumeName")}
	}
	return validation.Check(*s.PersistentVolumeName, at.Child("persistentVolumeName"),
		utilvalidation.IsDNS1123Subdomain)
}

func validateVolumeError(e *storagev1.VolumeError, at *field.Path) field.ErrorList {
	if e == nil {
		return nil
	}
	var errs field.ErrorList
	if len(e.Message) > longestMessage {
		errs = append(errs, field.TooLong(at.Child("message"), "", longestMessage))
	}
	if c := e.ErrorCode; c != nil && *c < 0 {
		errs = append(errs,
			field.Invalid(at.Child("errorCode"), *c, utilvalidation.InclusiveRangeError(0, math.MaxInt32)))
	}
	return errs
}

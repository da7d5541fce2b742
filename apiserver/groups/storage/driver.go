package storage

import (
	"context"
	"strings"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

const tokenWarning = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, " +
	"set to true to prevent possible logging of tokens in volume attributes"

func drivers() resource.Resource {
	return &resource.Kind[storagev1.CSIDriver]{
		GroupVersion:    version,
		Name:            "csidrivers",
		Singular:        "csidriver",
		ClusterScoped:   true,
		List:            &storagev1.CSIDriverList{},
		ReturnDeleted:   true,
		VersionedUpdate: true,
		Default:         defaultDriver,
		Prepare:         prepareDriver,
		Validate:        validateDriver,
		Warnings: func(_ context.Context, d, old *storagev1.CSIDriver) []string {
			unchanged := old != nil && apiequality.Semantic.DeepEqual(d.Spec.TokenRequests, old.Spec.TokenRequests)
			if len(d.Spec.TokenRequests) == 0 || d.Spec.ServiceAccountTokenInSecrets != nil || unchanged {
				return nil
			}
			return []string{tokenWarning}
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("AttachRequired", "boolean",
				"Whether volumes are attached to a node before they are mounted."),
			resource.Column("PodInfoOnMount", "boolean", "Whether the driver is told of the pod."),
			resource.Column("StorageCapacity", "boolean", "Whether pods wait for capacity that the driver reports."),
			resource.Column("TokenRequests", "string", "Audiences of tokens that the driver gets."),
			resource.Column("RequiresRepublish", "boolean", "Whether volumes are published again and again."),
			resource.Column("Modes", "string", "What kinds of volumes the driver makes."),
			resource.Age(),
		},
		Row: func(d *storagev1.CSIDriver, now time.Time) []any {
			s := &d.Spec
			return []any{d.Name, ptr.Deref(s.AttachRequired, true), ptr.Deref(s.PodInfoOnMount, false),
				ptr.Deref(s.StorageCapacity, false),
				formatAudiences(s.TokenRequests), ptr.Deref(s.RequiresRepublish, false),
				formatModes(s.VolumeLifecycleModes),
				resource.Since(d.CreationTimestamp, now)}
		},
	}
}

func formatAudiences(requests []storagev1.TokenRequest) string {
	if requests == nil {
		return "<unset>"
	}
	audiences := make([]string, len(requests))
	for i, r := range requests {
		audiences[i] = r.Audience
	}
	return strings.Join(audiences, ",")
}

func formatModes(modes []storagev1.VolumeLifecycleMode) string {
	if len(modes) == 0 {
		return resource.None
	}
	all := make([]string, len(modes))
	for i, m := range modes {
		all[i] = string(m)
	}
	return strings.Join(all, ",")
}

func defaultDriver(d *storagev1.CSIDriver) {
	s := &d.Spec
	setDefault(&s.AttachRequired, true)
	setDefault(&s.PodInfoOnMount, false)
	setDefault(&s.StorageCapacity, false)
	setDefault(&s.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	if len(s.VolumeLifecycleModes) == 0 {
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
	setDefault(&s.RequiresRepublish, false)
	setDefault(&s.SELinuxMount, false)
	setDefault(&s.PreventPodSchedulingIfMissing, false)
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// prepareDriver counts changes. A new driver has no generation, which is upstream's habit.
func prepareDriver(_ context.Context, d, old *storagev1.CSIDriver) {
	if old != nil && !apiequality.Semantic.DeepEqual(d.Spec, old.Spec) {
		d.Generation = old.Generation + 1
	}
}

func validateDriver(_ context.Context, d, old *storagev1.CSIDriver) field.ErrorList {
	errs := validation.Meta(d, old, false, validation.SubdomainName)
	s, at := &d.Spec, field.NewPath("spec")
	errs = append(errs, validation.OptionalOneOf(s.FSGroupPolicy, at.Child("fsGroupPolicy"),
		storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)...)
	errs = append(errs, validateTokenRequests(s.TokenRequests, at.Child("tokenRequests"))...)
	for _, mode := range s.VolumeLifecycleModes {
		if mode != storagev1.VolumeLifecyclePersistent && mode != storagev1.VolumeLifecycleEphemeral {
			errs = append(errs, field.NotSupported(at.Child("volumeLifecycleModes"), mode,
				[]storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent,
					storagev1.VolumeLifecycleEphemeral}))
		}
	}
	if n := s.NodeAllocatableUpdatePeriodSeconds; n != nil && *n < 10 {
		errs = append(errs,
			field.Invalid(at.Child("nodeAllocatableUpdatePeriodSeconds"), *n,
				"must be greater than or equal to 10 seconds"))
	}
	if s.ServiceAccountTokenInSecrets != nil && len(s.TokenRequests) == 0 {
		errs = append(errs, field.Invalid(at.Child("serviceAccountTokenInSecrets"), *s.ServiceAccountTokenInSecrets,
			"serviceAccountTokenInSecrets is set but no tokenRequests are specified"))
	}
	if old == nil {
		return errs
	}
	errs = append(errs,
		validation.Immutable(s.AttachRequired, old.Spec.AttachRequired, at.Child("attachedRequired"))...)
	return append(errs,
		validation.Immutable(s.VolumeLifecycleModes, old.Spec.VolumeLifecycleModes,
			at.Child("volumeLifecycleModes"))...)
}

func validateTokenRequests(requests []storagev1.TokenRequest, at *field.Path) field.ErrorList {
	const shortest, longest = 600, 1 << 32
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, r := range requests {
		at := at.Index(i)
		if seen[r.Audience] {
			errs = append(errs, field.Duplicate(at.Child("audience"), r.Audience))
			continue
		}
		seen[r.Audience] = true
		switch s := ptr.Deref(r.ExpirationSeconds, shortest); {
		case s < shortest:
			errs = append(errs,
				field.Invalid(at.Child("expirationSeconds"), s, "may not specify a duration less than 10 minutes"))
		case s > longest:
			errs = append(errs,
				field.Invalid(at.Child("expirationSeconds"), s, "may not specify a duration larger than 2^32 seconds"))
		}
	}
	return errs
}

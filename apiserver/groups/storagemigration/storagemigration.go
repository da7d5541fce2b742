// Package storagemigration declares the resources of the storagemigration.k8s.io API group:
// requests to write all objects of a resource once more, in the form in which they are stored
// today.
//
// Requests and their status are checked and stored here; a controller migrates the objects.
package storagemigration

import (
	"context"
	"slices"
	"strings"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

// Resources declares the group's resources.
func Resources() []resource.Resource { return []resource.Resource{migrations()} }

func migrations() resource.Resource {
	return &resource.Kind[storagemigrationv1.StorageVersionMigration]{
		GroupVersion:    storagemigrationv1.SchemeGroupVersion,
		Name:            "storageversionmigrations",
		Singular:        "storageversionmigration",
		ClusterScoped:   true,
		List:            &storagemigrationv1.StorageVersionMigrationList{},
		VersionedUpdate: true,
		Validate:        validateMigration,
		Status: &resource.Status[storagemigrationv1.StorageVersionMigration]{
			Prepare: func(_ context.Context, m, old *storagemigrationv1.StorageVersionMigration) {
				metav1.ResetObjectMetaForStatus(&m.ObjectMeta, &old.ObjectMeta)
			},
			Validate: validateStatus,
			Reset:    []fieldpath.Path{fieldpath.MakePathOrDie("metadata")},
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Resource", "string", "The resource whose objects are migrated."),
			resource.Column("Status", "string", "How far the migration has come."),
		},
		Row: func(m *storagemigrationv1.StorageVersionMigration, _ time.Time) []any {
			return []any{m.Name, m.Spec.Resource.String(), state(m)}
		},
	}
}

// state is the last of the conditions that hold, or Unknown.
func state(m *storagemigrationv1.StorageVersionMigration) string {
	known := []string{string(storagemigrationv1.MigrationRunning), string(storagemigrationv1.MigrationSucceeded),
		string(storagemigrationv1.MigrationFailed)}
	state := "Unknown"
	for _, c := range m.Status.Conditions {
		if c.Status == metav1.ConditionTrue && slices.Contains(known, c.Type) {
			state = c.Type
		}
	}
	return state
}

func validateMigration(_ context.Context, m, old *storagemigrationv1.StorageVersionMigration) field.ErrorList {
	errs := validation.Meta(m, old, false, validation.SubdomainName)
	of, at := m.Spec.Resource, field.NewPath("spec", "resource")
	if of.Resource == "" {
		errs = append(errs, field.Required(at.Child("resource"), "resource is required to be set"))
	} else if problems := utilvalidation.IsDNS1035Label(of.Resource); len(problems) > 0 {
		errs = append(errs, field.Invalid(at.Child("resource"), of.Resource, strings.Join(problems, ",")))
	}
	if of.Group != "" {
		if problems := utilvalidation.IsDNS1123Subdomain(of.Group); len(problems) > 0 {
			errs = append(errs, field.Invalid(at.Child("group"), of.Group, strings.Join(problems, ",")))
		}
	}
	if old != nil {
		errs = append(errs, validation.Immutable(m.Spec, old.Spec, field.NewPath("spec"))...)
	}
	return errs
}

// validateStatus checks a step of a migration, which ends once, in success or in failure.
func validateStatus(_ context.Context, m, old *storagemigrationv1.StorageVersionMigration) field.ErrorList {
	errs := validation.Meta(m, old, false, validation.SubdomainName)
	is, was, at := &m.Status, &old.Status, field.NewPath("status")
	revision := at.Child("resourceVersion")
	if is.ResourceVersion != "" {
		if _, err := resourceversion.CompareResourceVersion(is.ResourceVersion, is.ResourceVersion); err != nil {
			errs = append(errs, field.Invalid(revision, is.ResourceVersion, err.Error()))
		}
	}
	if was.ResourceVersion != "" && was.ResourceVersion != is.ResourceVersion {
		errs = append(errs, field.Invalid(revision, is.ResourceVersion, "field is immutable"))
	}
	at = at.Child("conditions")
	errs = append(errs, metav1validation.ValidateConditions(is.Conditions, at)...)
	const succeeded, failed = string(storagemigrationv1.MigrationSucceeded), string(storagemigrationv1.MigrationFailed)
	holds := meta.IsStatusConditionTrue
	if holds(is.Conditions, succeeded) && holds(is.Conditions, failed) {
		errs = append(errs,
			field.Invalid(at, is.Conditions, "Both success and failed conditions cannot be true at the same time"))
	}
	if holds(was.Conditions, succeeded) && !holds(is.Conditions, succeeded) {
		errs = append(errs,
			field.Invalid(at, is.Conditions, "Success condition cannot be set to false once it is true"))
	}
	if holds(was.Conditions, failed) && !holds(is.Conditions, failed) {
		errs = append(errs, field.Invalid(at, is.Conditions, "Failed condition cannot be set to false once it is true"))
	}
	return errs
}

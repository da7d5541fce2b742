package storageversionmigration

import (
	"context"
	"fmt"
	"slices"
	"time"

	migrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Definitions is the client of CustomResourceDefinitions.
type Definitions interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*apiextensionsv1.CustomResourceDefinition, error)
	UpdateStatus(
		ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, opts metav1.UpdateOptions,
	) (*apiextensionsv1.CustomResourceDefinition, error)
}

// begin writes into a CustomResourceDefinition, if the resource has one, that its objects are being
// migrated.
func (t *term) begin(ctx context.Context, m *migrationv1.StorageVersionMigration) error {
	return t.change(ctx, m, func(crd *apiextensionsv1.CustomResourceDefinition) { begun(crd, m.Name, time.Now()) })
}

// finish writes that they are migrated, and the versions that are stored since.
func (t *term) finish(ctx context.Context, m *migrationv1.StorageVersionMigration) error {
	return t.change(ctx, m, func(crd *apiextensionsv1.CustomResourceDefinition) {
		finished(crd, is(m, migrationv1.MigrationSucceeded), time.Now())
	})
}

func (t *term) change(
	ctx context.Context, m *migrationv1.StorageVersionMigration, edit func(*apiextensionsv1.CustomResourceDefinition),
) error {
	name := m.Spec.Resource.Resource + "." + m.Spec.Resource.Group
	crd, err := t.crds.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // it is a resource of the API itself
	}
	if err != nil {
		return fmt.Errorf("reading CustomResourceDefinition %s: %w", name, err)
	}
	edit(crd)
	// Its resourceVersion makes sure that its versions are those which were looked at.
	if _, err := t.crds.UpdateStatus(ctx, crd, metav1.UpdateOptions{FieldManager: manager}); err != nil {
		return fmt.Errorf("writing the status of CustomResourceDefinition %s: %w", name, err)
	}
	return nil
}

func begun(crd *apiextensionsv1.CustomResourceDefinition, migration string, now time.Time) {
	set(crd, apiextensionsv1.ConditionTrue, "MigrationRunning", fmt.Sprintf("Migration %s is running", migration), now)
}

// finished drops the versions without stored objects, unless the definition has changed during the
// migration: then some objects may have been written in an earlier version.
func finished(crd *apiextensionsv1.CustomResourceDefinition, succeeded bool, now time.Time) {
	i := slices.IndexFunc(crd.Status.Conditions, isMigrating)
	if i >= 0 && crd.Status.Conditions[i].Status == apiextensionsv1.ConditionFalse {
		return // the leader before has done it
	}
	same := i >= 0 && crd.Status.Conditions[i].ObservedGeneration == crd.Generation
	switch {
	case !succeeded:
		set(crd, apiextensionsv1.ConditionFalse, "MigrationFailed", "The migration has failed", now)
		return
	case !same:
		set(crd, apiextensionsv1.ConditionFalse, "MigrationSucceeded",
			"The migration has succeeded but the stored versions have not been updated due to a generation mismatch",
			now)
		return
	}
	set(crd, apiextensionsv1.ConditionFalse, "MigrationSucceeded",
		"The migration has succeeded and the stored versions have been updated", now)
	for _, v := range crd.Spec.Versions {
		if v.Storage {
			crd.Status.StoredVersions = []string{v.Name}
		}
	}
}

func isMigrating(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
	return c.Type == apiextensionsv1.StorageMigrating
}

func set(
	crd *apiextensionsv1.CustomResourceDefinition, status apiextensionsv1.ConditionStatus, reason, message string,
	now time.Time,
) {
	c := apiextensionsv1.CustomResourceDefinitionCondition{Type: apiextensionsv1.StorageMigrating, Status: status,
		Reason: reason, Message: message,
		LastTransitionTime: metav1.NewTime(now), ObservedGeneration: crd.Generation}
	if i := slices.IndexFunc(crd.Status.Conditions, isMigrating); i >= 0 {
		crd.Status.Conditions[i] = c
		return
	}
	crd.Status.Conditions = append(crd.Status.Conditions, c)
}

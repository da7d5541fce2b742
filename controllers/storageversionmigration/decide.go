package storageversionmigration

import (
	"fmt"
	"slices"
	"time"

	migrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// step is the next step of a migration. The order is:
//
//	waiting ──▶ beginning ──▶ marking ──▶ migrating ──▶ finishing ──▶ over
//
// and to finishing from marking and migrating when it fails.
type step int

const (
	waiting   step = iota // another migration of the resource runs, or is older
	beginning             // it is to run
	marking               // the revision is to be noted from which on objects are new
	migrating             // older objects are to be written again
	finishing             // it has succeeded or failed, and still counts as running
	over
)

func is(m *migrationv1.StorageVersionMigration, condition migrationv1.MigrationConditionType) bool {
	return meta.IsStatusConditionTrue(m.Status.Conditions, string(condition))
}

func ended(m *migrationv1.StorageVersionMigration) bool {
	return is(m, migrationv1.MigrationSucceeded) || is(m, migrationv1.MigrationFailed)
}

// decide returns the next step of a migration. all are the cluster's migrations: of one resource,
// one runs at a time, the oldest first.
func decide(m *migrationv1.StorageVersionMigration, all []*migrationv1.StorageVersionMigration) step {
	running := is(m, migrationv1.MigrationRunning)
	switch {
	case ended(m) && running:
		return finishing
	case ended(m):
		return over
	case running && m.Status.ResourceVersion == "":
		return marking
	case running:
		return migrating
	}
	for _, other := range all {
		if other.UID == m.UID || other.Spec.Resource != m.Spec.Resource ||
			ended(other) && !is(other, migrationv1.MigrationRunning) {
			continue
		}
		if is(other, migrationv1.MigrationRunning) || before(other, m) {
			return waiting
		}
	}
	return beginning
}

func before(a, b *migrationv1.StorageVersionMigration) bool {
	if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
		return c < 0
	}
	return a.Name < b.Name
}

// The reasons of the conditions.
const (
	reasonRunning   = "MigrationRunning"
	reasonCompleted = "MigrationCompleted"
	reasonSucceeded = "StorageVersionMigrationSucceeded"
	reasonFailed    = "StorageVersionMigrationFailed"
)

// progress is how far a migration is.
type progress struct {
	left, total int
	problem     error // that passes
}

// running returns the message of the condition of that type.
func (p progress) running() string {
	text := "The migration is running"
	switch {
	case p.left > 0:
		text += fmt.Sprintf(", %d/%d objects not yet migrated", p.left, p.total)
	case p.total > 0:
		text += fmt.Sprintf(", %d objects verified migrated", p.total)
	}
	if p.problem != nil {
		text += "; transient error: " + p.problem.Error()
	}
	return text
}

// with returns a copy of the status in which a condition is set.
func with(
	s migrationv1.StorageVersionMigrationStatus, t migrationv1.MigrationConditionType, status metav1.ConditionStatus,
	reason, message string, now time.Time,
) migrationv1.StorageVersionMigrationStatus {
	s.Conditions = slices.Clone(s.Conditions)
	meta.SetStatusCondition(&s.Conditions,
		metav1.Condition{Type: string(t), Status: status, Reason: reason, Message: message,
			LastTransitionTime: metav1.NewTime(now)})
	return s
}

// Package jobs has definitions that several controllers share about Jobs. All of it is pure.
package jobs

import (
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// Finished returns how a job has ended, Complete or Failed, and when; how is empty while it has
// not.
func Finished(job *batchv1.Job) (how batchv1.JobConditionType, at time.Time) {
	for i := range job.Status.Conditions {
		c := &job.Status.Conditions[i]
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.Type, c.LastTransitionTime.Time
		}
	}
	return "", time.Time{}
}

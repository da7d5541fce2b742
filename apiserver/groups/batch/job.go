package batch

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/resource"
)

// Labels that jobs put on their pods since before labels had prefixes. Clients still select by
// them.
const (
	legacyJobNameLabel       = "job-name"
	legacyControllerUIDLabel = "controller-uid"
)

func jobs() resource.Resource {
	return &resource.Kind[batchv1.Job]{
		GroupVersion: version,
		Name:         "jobs",
		Singular:     "job",
		Categories:   []string{"all"},
		List:         &batchv1.JobList{},
		Default:      defaultJob,
		Prepare:      prepareJob,
		Validate:     validateJob,
		Warnings: func(_ context.Context, j, old *batchv1.Job) []string {
			switch {
			case old == nil:
				return append(nameWarnings(j.Name), specWarnings(&j.Spec, "spec")...)
			case j.Generation != old.Generation:
				return specWarnings(&j.Spec, "spec")
			}
			return nil
		},
		Generation:        true,
		Status:            &resource.Status[batchv1.Job]{Validate: validateJobStatus},
		GarbageCollection: rest.OrphanDependents,
		Wrap:              func(s *resource.Storage) rest.Storage { return &jobStorage{s} },
		Columns: append([]metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Status", "string", "How far the job has come."),
			resource.Column("Completions", "string", "How many pods have succeeded, of how many needed."),
			resource.Column("Duration", "string", "Time from the start to the completion, or until now."),
			resource.Age(),
		}, podtemplate.Columns()...),
		Row: func(j *batchv1.Job, now time.Time) []any {
			return append([]any{
				j.Name,
				jobState(j),
				formatCompletions(j),
				formatDuration(&j.Status, now),
				resource.Since(j.CreationTimestamp, now),
			}, podtemplate.Cells(&j.Spec.Template.Spec, j.Spec.Selector)...)
		},
		Fields: func(j *batchv1.Job) fields.Set {
			return fields.Set{"status.successful": strconv.Itoa(int(j.Status.Succeeded))}
		},
	}
}

func defaultJob(j *batchv1.Job) {
	podtemplate.Default(&j.Spec.Template)
	defaultFailurePolicy(j.Spec.PodFailurePolicy)
	spec := &j.Spec
	// Without parallelism the job is of one pod. With it alone, any pod's success is the job's.
	if spec.Completions == nil && spec.Parallelism == nil {
		spec.Completions = ptr.To[int32](1)
	}
	if spec.Parallelism == nil {
		spec.Parallelism = ptr.To[int32](1)
	}
	if spec.BackoffLimit == nil {
		spec.BackoffLimit = ptr.To[int32](6)
		if spec.BackoffLimitPerIndex != nil {
			spec.BackoffLimit = ptr.To[int32](math.MaxInt32)
		}
	}
	if spec.CompletionMode == nil {
		spec.CompletionMode = ptr.To(batchv1.NonIndexedCompletion)
	}
	if spec.Suspend == nil {
		spec.Suspend = ptr.To(false)
	}
	if spec.PodReplacementPolicy == nil {
		spec.PodReplacementPolicy = ptr.To(batchv1.TerminatingOrFailed)
		if spec.PodFailurePolicy != nil {
			spec.PodReplacementPolicy = ptr.To(batchv1.Failed)
		}
	}
	if spec.ManualSelector == nil {
		spec.ManualSelector = ptr.To(false)
	}
	// The map is shared on purpose: the labels that a creation generates show on the job as well.
	if len(j.Labels) == 0 && spec.Template.Labels != nil {
		j.Labels = spec.Template.Labels
	}
}

func defaultFailurePolicy(policy *batchv1.PodFailurePolicy) {
	if policy == nil {
		return
	}
	for i := range policy.Rules {
		for j := range policy.Rules[i].OnPodConditions {
			if c := &policy.Rules[i].OnPodConditions[j]; c.Status == "" {
				c.Status = corev1.ConditionTrue
			}
		}
	}
}

func prepareJob(_ context.Context, j, old *batchv1.Job) {
	dropUnserved(&j.Spec)
	if old == nil && !ptr.Deref(j.Spec.ManualSelector, false) {
		generateSelector(j)
	}
}

// generateSelector makes the job select its own pods by its UID, and labels its template so. Values
// of the client stay; validation refuses them if they differ.
func generateSelector(j *batchv1.Job) {
	if j.Spec.Template.Labels == nil {
		j.Spec.Template.Labels = map[string]string{}
	}
	for label, value := range generatedLabels(j) {
		if _, set := j.Spec.Template.Labels[label]; !set {
			j.Spec.Template.Labels[label] = value
		}
	}
	if j.Spec.Selector == nil {
		j.Spec.Selector = &metav1.LabelSelector{}
	}
	if j.Spec.Selector.MatchLabels == nil {
		j.Spec.Selector.MatchLabels = map[string]string{}
	}
	if _, set := j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel]; !set {
		j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel] = string(j.UID)
	}
}

// generatedLabels are the labels that the pods of a job carry.
func generatedLabels(j *batchv1.Job) map[string]string {
	return map[string]string{
		legacyJobNameLabel:         j.Name,
		batchv1.JobNameLabel:       j.Name,
		legacyControllerUIDLabel:   string(j.UID),
		batchv1.ControllerUidLabel: string(j.UID),
	}
}

// jobState is the most significant of a job's conditions.
func jobState(j *batchv1.Job) string {
	switch {
	case hasCondition(j, batchv1.JobComplete):
		return "Complete"
	case hasCondition(j, batchv1.JobFailed):
		return "Failed"
	case j.DeletionTimestamp != nil:
		return "Terminating"
	case hasCondition(j, batchv1.JobSuspended):
		return "Suspended"
	case hasCondition(j, batchv1.JobFailureTarget):
		return "FailureTarget"
	case hasCondition(j, batchv1.JobSuccessCriteriaMet):
		return "SuccessCriteriaMet"
	}
	return "Running"
}

// hasCondition reports whether a condition of the job is true.
func hasCondition(j *batchv1.Job, of batchv1.JobConditionType) bool {
	return conditionIs(j, of, corev1.ConditionTrue)
}

func conditionIs(j *batchv1.Job, of batchv1.JobConditionType, status corev1.ConditionStatus) bool {
	for _, c := range j.Status.Conditions {
		if c.Type == of && c.Status == status {
			return true
		}
	}
	return false
}

func formatCompletions(j *batchv1.Job) string {
	if want := j.Spec.Completions; want != nil {
		return fmt.Sprintf("%d/%d", j.Status.Succeeded, *want)
	}
	if parallel := ptr.Deref(j.Spec.Parallelism, 0); parallel > 1 {
		return fmt.Sprintf("%d/1 of %d", j.Status.Succeeded, parallel)
	}
	return fmt.Sprintf("%d/1", j.Status.Succeeded)
}

func formatDuration(s *batchv1.JobStatus, now time.Time) string {
	switch {
	case s.StartTime == nil:
		return ""
	case s.CompletionTime == nil:
		return duration.HumanDuration(now.Sub(s.StartTime.Time))
	}
	return duration.HumanDuration(s.CompletionTime.Sub(s.StartTime.Time))
}

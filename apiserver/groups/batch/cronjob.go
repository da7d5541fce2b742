package batch

import (
	"context"
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func cronJobs() resource.Resource {
	return &resource.Kind[batchv1.CronJob]{
		GroupVersion: version,
		Name:         "cronjobs",
		Singular:     "cronjob",
		ShortNames:   []string{"cj"},
		Categories:   []string{"all"},
		List:         &batchv1.CronJobList{},
		Default:      defaultCronJob,
		Prepare: func(_ context.Context, c, _ *batchv1.CronJob) {
			dropUnserved(&c.Spec.JobTemplate.Spec)
		},
		Validate:   validateCronJob,
		Warnings:   cronJobWarnings,
		Generation: true,
		Status:     &resource.Status[batchv1.CronJob]{},
		Columns: append([]metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Schedule", "string", "When jobs are made, in the format of cron."),
			resource.Column("Timezone", "string", "The time zone of the schedule."),
			resource.Column("Suspend", "boolean", "Whether no jobs are made for now."),
			resource.Column("Active", "integer", "How many of its jobs are running."),
			resource.Column("Last Schedule", "string", "Time since the last job was made."),
			resource.Age(),
		}, podtemplate.Columns()...),
		Row: cronJobRow,
	}
}

func defaultCronJob(c *batchv1.CronJob) {
	podtemplate.Default(&c.Spec.JobTemplate.Spec.Template)
	defaultFailurePolicy(c.Spec.JobTemplate.Spec.PodFailurePolicy)
	spec := &c.Spec
	if spec.ConcurrencyPolicy == "" {
		spec.ConcurrencyPolicy = batchv1.AllowConcurrent
	}
	if spec.Suspend == nil {
		spec.Suspend = ptr.To(false)
	}
	if spec.SuccessfulJobsHistoryLimit == nil {
		spec.SuccessfulJobsHistoryLimit = ptr.To[int32](3)
	}
	if spec.FailedJobsHistoryLimit == nil {
		spec.FailedJobsHistoryLimit = ptr.To[int32](1)
	}
}

func cronJobWarnings(_ context.Context, c, old *batchv1.CronJob) []string {
	var out []string
	if old == nil {
		out = nameWarnings(c.Name)
	}
	if old == nil || c.Generation != old.Generation {
		out = append(out, specWarnings(&c.Spec.JobTemplate.Spec, "spec", "jobTemplate", "spec")...)
	}
	if old != nil && strings.Contains(c.Spec.Schedule, "TZ") {
		out = append(out, "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, "+
			"see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details")
	}
	return out
}

func cronJobRow(c *batchv1.CronJob, now time.Time) []any {
	last := resource.None
	if c.Status.LastScheduleTime != nil {
		last = resource.Since(*c.Status.LastScheduleTime, now)
	}
	suspend := "<unset>"
	if c.Spec.Suspend != nil {
		suspend = "False"
		if *c.Spec.Suspend {
			suspend = "True"
		}
	}
	job := &c.Spec.JobTemplate.Spec
	return append([]any{
		c.Name,
		c.Spec.Schedule,
		ptr.Deref(c.Spec.TimeZone, resource.None),
		suspend,
		int64(len(c.Status.Active)),
		last,
		resource.Since(c.CreationTimestamp, now),
	}, podtemplate.Cells(&job.Template.Spec, job.Selector)...)
}

// longestCronJobName leaves room for the suffix of the jobs, a dash and the time in minutes.
const longestCronJobName = utilvalidation.DNS1035LabelMaxLength - 11

func validateCronJob(_ context.Context, c, old *batchv1.CronJob) field.ErrorList {
	errs := validation.Meta(c, old, true, validation.SubdomainName)
	if old == nil && len(c.Name) > longestCronJobName {
		errs = append(errs,
			field.Invalid(field.NewPath("metadata", "name"), c.Name,
				fmt.Sprintf("must be no more than %d characters", longestCronJobName)))
	}
	spec, at := &c.Spec, field.NewPath("spec")
	was := &batchv1.CronJobSpec{}
	if old != nil {
		was = &old.Spec
	}
	errs = append(errs, validateSchedule(spec, was, at.Child("schedule"))...)
	if old == nil || !ptr.Equal(spec.TimeZone, was.TimeZone) {
		errs = append(errs, validateTimeZone(spec.TimeZone, at.Child("timeZone"))...)
	}
	errs = append(errs,
		validation.OptionalNonNegative(spec.StartingDeadlineSeconds, at.Child("startingDeadlineSeconds"))...)
	errs = append(errs, validation.Enum(spec.ConcurrencyPolicy, at.Child("concurrencyPolicy"),
		batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent)...)
	errs = append(errs, validateJobTemplate(&spec.JobTemplate.Spec, at.Child("jobTemplate", "spec"))...)
	errs = append(errs,
		validation.OptionalNonNegative(spec.SuccessfulJobsHistoryLimit, at.Child("successfulJobsHistoryLimit"))...)
	return append(errs,
		validation.OptionalNonNegative(spec.FailedJobsHistoryLimit, at.Child("failedJobsHistoryLimit"))...)
}

// validateJobTemplate checks the spec of the jobs to be made. Their selectors are generated.
func validateJobTemplate(spec *batchv1.JobSpec, at *field.Path) field.ErrorList {
	errs := validateJobSpec(spec, at)
	if spec.Selector != nil {
		errs = append(errs, field.Invalid(at.Child("selector"), spec.Selector, "`selector` will be auto-generated"))
	}
	if ptr.Deref(spec.ManualSelector, false) {
		errs = append(errs, field.NotSupported(at.Child("manualSelector"), true, []string{"nil", "false"}))
	}
	return errs
}

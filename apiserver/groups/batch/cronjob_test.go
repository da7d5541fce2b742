package batch

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

const (
	daily       = "schedule: '0 3 * * *', "
	jobTemplate = "jobTemplate: {spec: {" + template + "}}"
)

func cronJob(t *testing.T, spec string) *batchv1.CronJob {
	t.Helper()
	c := grouptest.Parse[batchv1.CronJob](t, meta+"spec: {"+spec+"}")
	defaultCronJob(c)
	return c
}

func TestCronJobDefaults(t *testing.T) {
	got := grouptest.Parse[batchv1.CronJob](t,
		"spec: {"+daily+
			"jobTemplate: {spec: {podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: A}]}]}}}}")
	defaultCronJob(got)
	want := grouptest.Parse[batchv1.CronJob](t, `
spec:
  schedule: 0 3 * * *
  concurrencyPolicy: Allow
  suspend: false
  successfulJobsHistoryLimit: 3
  failedJobsHistoryLimit: 1
  jobTemplate:
    spec:
      podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: A, status: "True"}]}]}
      template: {spec: {restartPolicy: Always, dnsPolicy: ClusterFirst, schedulerName: default-scheduler, securityContext: {}, terminationGracePeriodSeconds: 30}}
`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	const set = daily +
		"concurrencyPolicy: Forbid, suspend: true, successfulJobsHistoryLimit: 0, failedJobsHistoryLimit: 0, " +
		jobTemplate
	kept, parsed := cronJob(t, set), grouptest.Parse[batchv1.CronJob](t, meta+"spec: {"+set+"}")
	parsed.Spec.JobTemplate = kept.Spec.JobTemplate
	if diff := cmp.Diff(parsed, kept); diff != "" {
		t.Errorf("defaults replaced what was set (-want +got):\n%s", diff)
	}
}

func TestValidateCronJob(t *testing.T) {
	const at = "spec.jobTemplate.spec."
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"good":        {daily + "timeZone: Europe/Berlin, startingDeadlineSeconds: 5, " + jobTemplate, nil},
		"nickname":    {"schedule: '@hourly', timeZone: Etc/GMT+5, " + jobTemplate, nil},
		"no schedule": {jobTemplate, []string{grouptest.Missing + "spec.schedule"}},
		"schedule":    {"schedule: '61 * * * *', " + jobTemplate, []string{grouptest.Invalid + "spec.schedule"}},
		"seconds":     {"schedule: '0 0 3 * * *', " + jobTemplate, []string{grouptest.Invalid + "spec.schedule"}},
		"panics": {"schedule: 'TZ=0', " + jobTemplate,
			[]string{grouptest.Invalid + "spec.schedule", grouptest.Invalid + "spec.schedule"}},
		"zone inside": {"schedule: 'CRON_TZ=UTC 0 3 * * *', " + jobTemplate,
			[]string{grouptest.Invalid + "spec.schedule"}},
		"empty zone": {daily + "timeZone: '', " + jobTemplate, []string{grouptest.Invalid + "spec.timeZone"}},
		"no such zone": {daily + "timeZone: Europe/Atlantis, " + jobTemplate,
			[]string{grouptest.Invalid + "spec.timeZone"}},
		"zone of the host": {daily + "timeZone: local, " + jobTemplate,
			[]string{grouptest.Invalid + "spec.timeZone", grouptest.Invalid + "spec.timeZone"}},
		"zone by path": {daily + "timeZone: Europe/../Europe/Berlin, " + jobTemplate,
			[]string{grouptest.Invalid + "spec.timeZone"}},
		"zone by /": {daily + "timeZone: /Europe/Berlin, " + jobTemplate,
			[]string{grouptest.Invalid + "spec.timeZone"}},
		"concurrency": {daily + "concurrencyPolicy: Queue, " + jobTemplate,
			[]string{grouptest.Unknown + "spec.concurrencyPolicy"}},
		"numbers": {
			daily + "startingDeadlineSeconds: -1, successfulJobsHistoryLimit: -1, failedJobsHistoryLimit: -1, " +
				jobTemplate,
			[]string{grouptest.Invalid + "spec.startingDeadlineSeconds",
				grouptest.Invalid + "spec.successfulJobsHistoryLimit",
				grouptest.Invalid + "spec.failedJobsHistoryLimit"}},
		"job": {
			daily + "jobTemplate: {spec: {backoffLimit: -1, template: {spec: {containers: [{name: a, image: i}]}}}}",
			[]string{grouptest.Invalid + at + "backoffLimit", grouptest.Missing + at + "template.spec.restartPolicy"}},
		"selector": {daily + "jobTemplate: {spec: {selector: {}, manualSelector: true, " + template + "}}",
			[]string{grouptest.Invalid + at + "selector", grouptest.Unknown + at + "manualSelector"}},
		"indexed": {daily + "jobTemplate: {spec: {completionMode: Indexed, completions: 2, " + template + "}}",
			nil},
	} {
		t.Run(name, func(t *testing.T) {
			grouptest.WantErrors(t, validateCronJob(context.Background(), cronJob(t, c.spec), nil), c.want...)
		})
	}
	long := cronJob(t, daily+jobTemplate)
	long.Name = strings.Repeat("a", 53)
	grouptest.WantErrors(t, validateCronJob(context.Background(), long, nil), grouptest.Invalid+"metadata.name")
	grouptest.WantErrors(t, validateCronJob(context.Background(), long, long))
	long.Name = strings.Repeat("a", 52)
	grouptest.WantErrors(t, validateCronJob(context.Background(), long, nil))
}

func TestCronJobUpdate(t *testing.T) {
	const inside = "schedule: 'TZ=UTC 0 3 * * *', "
	for name, c := range map[string]struct {
		old, spec string
		want      []string
	}{
		"all": {daily + jobTemplate,
			"schedule: '@daily', suspend: true, jobTemplate: {spec: {completions: 3, template: {spec: {restartPolicy: OnFailure, containers: [{name: a, image: i}]}}}}", nil},
		"zone stays": {inside + jobTemplate, "schedule: 'TZ=UTC 0 4 * * *', " + jobTemplate, nil},
		"zone twice": {inside + jobTemplate, inside + "timeZone: Europe/Berlin, " + jobTemplate,
			[]string{grouptest.Invalid + "spec.schedule"}},
		"zone comes": {daily + jobTemplate, inside + jobTemplate, []string{grouptest.Invalid + "spec.schedule"}},
		"old zone is gone": {daily + "timeZone: Europe/Atlantis, " + jobTemplate,
			daily + "timeZone: Europe/Atlantis, suspend: true, " + jobTemplate, nil},
		"unknown zone": {daily + "timeZone: Europe/Atlantis, " + jobTemplate,
			daily + "timeZone: Europe/Avalon, " + jobTemplate, []string{grouptest.Invalid + "spec.timeZone"}},
	} {
		t.Run(name, func(t *testing.T) {
			grouptest.WantErrors(t, validateCronJob(context.Background(), cronJob(t, c.spec), cronJob(t, c.old)),
				c.want...)
		})
	}
}

func TestCronJobWarnings(t *testing.T) {
	c := cronJob(t,
		"schedule: 'TZ=UTC 0 3 * * *', jobTemplate: {spec: {completionMode: Indexed, completions: 100001, parallelism: 10001, "+template+"}}")
	c.Name = "c.example"
	got := cronJobWarnings(context.Background(), c, nil)
	if len(got) != 2 || !strings.HasPrefix(got[0], "metadata.name: ") ||
		!strings.HasPrefix(got[1], "spec.jobTemplate.spec: ") {
		t.Errorf("on creation: %q", got)
	}
	got = cronJobWarnings(context.Background(), c, c)
	if len(got) != 1 || !strings.HasPrefix(got[0], "cannot use TZ or CRON_TZ in") {
		t.Errorf("on update: %q", got)
	}
}

func TestCronJobRow(t *testing.T) {
	c := cronJob(t, daily+"suspend: true, timeZone: UTC, "+jobTemplate)
	c.CreationTimestamp = grouptest.Ago(5 * time.Minute)
	c.Status = batchv1.CronJobStatus{Active: []corev1.ObjectReference{{Name: "a"}, {Name: "b"}},
		LastScheduleTime: ptr.To(grouptest.Ago(time.Minute))}
	grouptest.WantRow(t, cronJobs(), c, "j", "0 3 * * *", "UTC", "True", int64(2), "60s", "5m", "work", "pi:3",
		"<none>")

	c = cronJob(t, daily+jobTemplate)
	grouptest.WantRow(t, cronJobs(), c, "j", "0 3 * * *", "<none>", "False", int64(0), "<none>", "<unknown>", "work",
		"pi:3", "<none>")
}

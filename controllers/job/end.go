package job

import (
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// end returns the condition that ends the job, SuccessCriteriaMet or FailureTarget, nil if it goes
// on. An earlier decision is kept. Completion by numbers is not among them: see completed.
func (v *view) end(p *plan) *batchv1.JobCondition {
	for _, t := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobFailureTarget} {
		if c := conditionOf(v.job.Status.Conditions, t); c != nil && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	failure := func(reason, message string) *batchv1.JobCondition {
		return newCondition(batchv1.JobFailureTarget, corev1.ConditionTrue, reason, message, v.now)
	}
	if message := v.failedByPolicy(); message != "" {
		return failure(batchv1.JobReasonPodFailurePolicy, message)
	}
	if v.failed > backoffLimit(v.job) || v.restartsTooOften() {
		return failure(batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
	}
	if limit := v.job.Spec.ActiveDeadlineSeconds; limit != nil && !suspended(v.job) && p.status.StartTime != nil {
		left := p.status.StartTime.Add(time.Duration(*limit) * time.Second).Sub(v.now)
		if left <= 0 && v.job.Status.StartTime != nil {
			return failure(batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
		}
		p.soon(max(left, time.Second))
	}
	if !indexed(v.job) {
		return nil
	}
	if n := v.failedNow.count(); n > 0 {
		if most := v.job.Spec.MaxFailedIndexes; most != nil && n > int(*most) {
			return failure(batchv1.JobReasonMaxFailedIndexesExceeded,
				"Job has exceeded the specified maximal number of failed indexes")
		}
		if n+v.doneNow.count() >= v.completions() {
			return failure(batchv1.JobReasonFailedIndexes, "Job has failed indexes")
		}
	}
	if message := satisfied(v.job.Spec.SuccessPolicy, v.completions(), v.doneNow); message != "" {
		return newCondition(batchv1.JobSuccessCriteriaMet, corev1.ConditionTrue, batchv1.JobReasonSuccessPolicy,
			message, v.now)
	}
	return nil
}

func (v *view) failedByPolicy() string {
	if v.job.Spec.PodFailurePolicy == nil {
		return ""
	}
	for _, pod := range v.pods {
		if v.lost(pod) {
			if verdict := judge(v.job.Spec.PodFailurePolicy,
				pod); verdict.action == batchv1.PodFailurePolicyActionFailJob {
				return verdict.message
			}
		}
	}
	return ""
}

// restartsTooOften reports whether the containers of the running pods have been restarted as often
// as the job's pods may fail. Their kubelets restart them: no pod fails.
func (v *view) restartsTooOften() bool {
	if v.job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return false
	}
	var n int32
	for _, pod := range v.pods {
		if pod.Status.Phase != corev1.PodRunning && pod.Status.Phase != corev1.PodPending {
			continue
		}
		for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses,
			pod.Status.ContainerStatuses} {
			for i := range list {
				n += list[i].RestartCount
			}
		}
	}
	return n > 0 && n >= backoffLimit(v.job)
}

func backoffLimit(job *batchv1.Job) int32 {
	if job.Spec.BackoffLimit == nil {
		return 6
	}
	return *job.Spec.BackoffLimit
}

// completed returns the condition of a job with all its successes and no running pod.
func (v *view) completed(p *plan) *batchv1.JobCondition {
	if len(v.active)-len(p.discard)+len(p.create) > 0 {
		return nil
	}
	enough := v.succeeded > 0 // without a number, any success will do
	if v.job.Spec.Completions != nil {
		enough = v.succeeded >= *v.job.Spec.Completions
	}
	if !enough {
		return nil
	}
	return newCondition(batchv1.JobSuccessCriteriaMet, corev1.ConditionTrue, batchv1.JobReasonCompletionsReached,
		"Reached expected number of succeeded pods", v.now)
}

// suspension keeps the Suspended condition, and the start time with it: time in suspension does not
// count towards the deadline.
func (v *view) suspension(p *plan) {
	is := isTrue(p.status.Conditions, batchv1.JobSuspended)
	switch {
	case suspended(v.job) && !is:
		setCondition(&p.status,
			newCondition(batchv1.JobSuspended, corev1.ConditionTrue, "JobSuspended", "Job suspended", v.now))
		p.status.StartTime = nil
		p.events = append(p.events, event{corev1.EventTypeNormal, "Suspended", "Job suspended"})
	case !suspended(v.job) && is:
		setCondition(&p.status,
			newCondition(batchv1.JobSuspended, corev1.ConditionFalse, "JobResumed", "Job resumed", v.now))
		p.status.StartTime = timeOf(v.now)
		p.events = append(p.events, event{corev1.EventTypeNormal, "Resumed", "Job resumed"})
	}
}

// finish adds the condition that the job is ending. When an earlier reconcile has added it and
// every pod has ended and is counted, finish adds the condition that the job has ended.
func (v *view) finish(p *plan, end *batchv1.JobCondition) {
	if end == nil {
		return
	}
	if !isTrue(v.job.Status.Conditions, end.Type) {
		setCondition(&p.status, end)
		return
	}
	u := p.status.UncountedTerminatedPods
	if len(v.active) > 0 || *p.status.Terminating > 0 || len(p.release) > 0 || len(u.Succeeded)+len(u.Failed) > 0 {
		return
	}
	if end.Type == batchv1.JobFailureTarget {
		setCondition(&p.status, newCondition(batchv1.JobFailed, corev1.ConditionTrue, end.Reason, end.Message, v.now))
		p.events = append(p.events, event{corev1.EventTypeWarning, end.Reason, end.Message})
		return
	}
	setCondition(&p.status, newCondition(batchv1.JobComplete, corev1.ConditionTrue, end.Reason, end.Message, v.now))
	p.status.CompletionTime = timeOf(v.now)
	if n := v.job.Spec.Completions; n != nil && p.status.Succeeded > *n {
		p.events = append(p.events,
			event{corev1.EventTypeWarning, "TooManySucceededPods",
				"Too many succeeded pods running after completion count reached"})
	}
	p.events = append(p.events, event{corev1.EventTypeNormal, "Completed", "Job completed"})
}

func conditionOf(list []batchv1.JobCondition, t batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range list {
		if list[i].Type == t {
			return &list[i]
		}
	}
	return nil
}

func isTrue(list []batchv1.JobCondition, t batchv1.JobConditionType) bool {
	c := conditionOf(list, t)
	return c != nil && c.Status == corev1.ConditionTrue
}

func setCondition(status *batchv1.JobStatus, c *batchv1.JobCondition) {
	if was := conditionOf(status.Conditions, c.Type); was != nil {
		*was = *c
		return
	}
	status.Conditions = append(status.Conditions, *c)
}

func newCondition(
	t batchv1.JobConditionType, status corev1.ConditionStatus, reason, message string, now time.Time,
) *batchv1.JobCondition {
	return &batchv1.JobCondition{Type: t, Status: status, LastProbeTime: *timeOf(now), LastTransitionTime: *timeOf(now),
		Reason: reason, Message: message}
}

// timeOf truncates a time to the precision of the API.
func timeOf(t time.Time) *metav1.Time {
	m := metav1.NewTime(t.Truncate(time.Second))
	return &m
}

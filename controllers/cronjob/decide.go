package cronjob

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/controllers/jobs"
)

// slack is how long after a time of the schedule the next look comes.
const slack = 100 * time.Millisecond

// plan has the changes for one CronJob, in this order.
type plan struct {
	expired []*batchv1.Job // finished jobs beyond the history limits
	replace []*batchv1.Job // running ones that give way to create
	create  *batchv1.Job
	due     time.Time // when create was to start
	status  batchv1.CronJobStatus
	events  []event
	again   time.Duration
}

// event is one that users see.
type event struct{ kind, reason, message string }

func (p *plan) warn(reason, format string, args ...any) {
	p.events = append(p.events, event{corev1.EventTypeWarning, reason, fmt.Sprintf(format, args...)})
}

func (p *plan) note(reason, format string, args ...any) {
	p.events = append(p.events, event{corev1.EventTypeNormal, reason, fmt.Sprintf(format, args...)})
}

// decide compares the jobs of a CronJob with its schedule. children are all jobs that it controls.
//
// Of several missed times only the last counts. A job's name has its time in it, so that no time
// has two jobs, even if the memory between two reconciles is lost.
func decide(c *batchv1.CronJob, children []*batchv1.Job, now time.Time) plan {
	p := plan{status: *c.Status.DeepCopy()}
	follow(&p, children)
	if c.DeletionTimestamp != nil {
		return p
	}
	p.expired = slices.Concat(beyond(children, batchv1.JobComplete, c.Spec.SuccessfulJobsHistoryLimit),
		beyond(children, batchv1.JobFailed, c.Spec.FailedJobsHistoryLimit))
	if zone := c.Spec.TimeZone; zone != nil {
		if _, err := time.LoadLocation(*zone); err != nil {
			p.warn("UnknownTimeZone", "invalid timeZone: %q: %s", *zone, err)
			return p
		}
	}
	if c.Spec.Suspend != nil && *c.Spec.Suspend {
		return p
	}
	schedule, err := parse(c)
	if err != nil {
		p.warn("UnparseableSchedule", "unparseable schedule: %q : %s", c.Spec.Schedule, err)
		return p
	}
	since := beginning(c, schedule, now)
	due, ok := latest(schedule, since, now)
	next := schedule.Next(now)
	if _, every := schedule.(cron.ConstantDelaySchedule); every {
		if next = schedule.Next(since); ok {
			next = schedule.Next(due)
		}
	}
	if next.IsZero() {
		p.warn("InvalidSchedule", "invalid schedule: %s : it never comes", c.Spec.Schedule)
		return p
	}
	p.again = next.Sub(now) + slack
	if !ok {
		return p
	}
	v := view{c, children, schedule, now}
	v.start(&p, due)
	return p
}

// view is the input of start.
type view struct {
	cron     *batchv1.CronJob
	children []*batchv1.Job
	schedule cron.Schedule
	now      time.Time
}

// start plans the job of a time that has come.
func (v view) start(p *plan, due time.Time) {
	c := v.cron
	if deadline := c.Spec.StartingDeadlineSeconds; deadline != nil &&
		due.Add(time.Duration(*deadline)*time.Second).Before(v.now) {
		p.warn("MissSchedule", "Missed scheduled time to start a job: %s", due.UTC().Format(time.RFC1123Z))
		return
	}
	name := nameFor(c, due)
	if c.Status.LastScheduleTime != nil && !c.Status.LastScheduleTime.Time.Before(due.Truncate(time.Second)) {
		return
	}
	if i := slices.IndexFunc(v.children, func(j *batchv1.Job) bool { return j.Name == name }); i >= 0 {
		p.status.LastScheduleTime = &metav1.Time{Time: due} // it was made, and then forgotten
		return
	}
	if missed(v.schedule, beginning(c, v.schedule, v.now), v.now) > many {
		p.warn("TooManyMissedTimes",
			"too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
	}
	if zoned(c) {
		p.warn("UnsupportedSchedule",
			"CRON_TZ or TZ used in schedule %q is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details", c.Spec.Schedule)
	}
	switch {
	case c.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent && len(p.status.Active) > 0:
		p.note("JobAlreadyActive",
			"Not starting job because prior execution is running and concurrency policy is Forbid")
		return
	case c.Spec.ConcurrencyPolicy == batchv1.ReplaceConcurrent:
		for _, j := range v.children {
			if activeIn(&p.status, j.UID) >= 0 {
				p.replace = append(p.replace, j)
			}
		}
		p.status.Active = nil
	}
	p.create, p.due = jobFor(c, due), due
}

// beginning returns the time after which starts may have been missed: the last one or the creation,
// or the deadline for starting if that is later.
func beginning(c *batchv1.CronJob, schedule cron.Schedule, now time.Time) time.Time {
	since := c.CreationTimestamp.Time
	if c.Status.LastScheduleTime != nil {
		since = c.Status.LastScheduleTime.Time
	}
	if _, every := schedule.(cron.ConstantDelaySchedule); every || c.Spec.StartingDeadlineSeconds == nil {
		return since // the times of "@every" depend on where they begin
	}
	if earliest := now.Add(-time.Duration(*c.Spec.StartingDeadlineSeconds) * time.Second); earliest.After(since) {
		return earliest
	}
	return since
}

// follow updates the jobs in the status.
func follow(p *plan, children []*batchv1.Job) {
	there := map[types.UID]*batchv1.Job{}
	for _, j := range children {
		there[j.UID] = j
	}
	p.status.Active = slices.DeleteFunc(p.status.Active, func(ref corev1.ObjectReference) bool {
		j := there[ref.UID]
		if j == nil {
			p.note("MissingJob", "Active job went missing: %v", ref.Name)
			return true
		}
		how, _ := jobs.Finished(j)
		if how != "" {
			p.note("SawCompletedJob", "Saw completed job: %s, condition: %v", j.Name, how)
		}
		return how != ""
	})
	for _, j := range children {
		how, _ := jobs.Finished(j)
		switch {
		case how == batchv1.JobComplete:
			if t := j.Status.CompletionTime; t != nil &&
				(p.status.LastSuccessfulTime == nil || t.After(p.status.LastSuccessfulTime.Time)) {
				p.status.LastSuccessfulTime = t.DeepCopy()
			}
		// A job that was made and is missing from the status. Jobs that users made have no time.
		case how == "" && j.Annotations[batchv1.CronJobScheduledTimestampAnnotation] != "" &&
			activeIn(&p.status, j.UID) < 0:
			p.status.Active = append(p.status.Active, refTo(j))
		}
	}
}

func activeIn(s *batchv1.CronJobStatus, uid types.UID) int {
	return slices.IndexFunc(s.Active, func(ref corev1.ObjectReference) bool { return ref.UID == uid })
}

func refTo(j *batchv1.Job) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Namespace: j.Namespace,
		Name: j.Name, UID: j.UID, ResourceVersion: j.ResourceVersion}
}

// beyond returns the oldest jobs that have ended in a way, more than limit.
func beyond(children []*batchv1.Job, how batchv1.JobConditionType, limit *int32) []*batchv1.Job {
	if limit == nil {
		return nil
	}
	var ended []*batchv1.Job
	for _, j := range children {
		if h, _ := jobs.Finished(j); h == how {
			ended = append(ended, j)
		}
	}
	started := func(j *batchv1.Job) time.Time {
		if j.Status.StartTime != nil {
			return j.Status.StartTime.Time
		}
		return j.CreationTimestamp.Time
	}
	slices.SortFunc(ended, func(a, b *batchv1.Job) int {
		return cmp.Or(started(a).Compare(started(b)), cmp.Compare(a.Name, b.Name))
	})
	ended = ended[:max(0, len(ended)-int(*limit))]
	return slices.DeleteFunc(ended, func(j *batchv1.Job) bool { return j.DeletionTimestamp != nil })
}

// nameFor names the job of a time. Jobs are at least a minute apart.
func nameFor(c *batchv1.CronJob, due time.Time) string {
	return c.Name + "-" + strconv.FormatInt(due.Unix()/60, 10)
}

// jobFor makes the job of a time.
func jobFor(c *batchv1.CronJob, due time.Time) *batchv1.Job {
	t := c.Spec.JobTemplate.DeepCopy()
	annotations := maps.Clone(t.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	at := due
	if c.Spec.TimeZone != nil {
		if zone, err := time.LoadLocation(*c.Spec.TimeZone); err == nil {
			at = due.In(zone)
		}
	}
	annotations[batchv1.CronJobScheduledTimestampAnnotation] = at.Format(time.RFC3339)
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: nameFor(c, due), Labels: t.Labels, Annotations: annotations,
			CreationTimestamp: metav1.Time{},
			OwnerReferences:   []metav1.OwnerReference{*metav1.NewControllerRef(c, kind)},
		},
		Spec: t.Spec,
	}
}

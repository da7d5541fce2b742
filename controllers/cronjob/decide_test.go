package cronjob

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// now is ten seconds after a quarter past three, on a Friday in winter.
var now = time.Date(2026, 1, 2, 3, 15, 10, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

func newCron(schedule string, edits ...func(*batchv1.CronJob)) *batchv1.CronJob {
	c := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "c", UID: "c",
			CreationTimestamp: metav1.NewTime(now.Add(-5 * time.Minute))},
		Spec: batchv1.CronJobSpec{Schedule: schedule, ConcurrencyPolicy: batchv1.AllowConcurrent,
			SuccessfulJobsHistoryLimit: ptr(int32(3)), FailedJobsHistoryLimit: ptr(int32(1)),
			JobTemplate: batchv1.JobTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"l": "m"},
					Annotations: map[string]string{"a": "b"}}}},
	}
	for _, edit := range edits {
		edit(c)
	}
	return c
}

func last(ago time.Duration) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) { c.Status.LastScheduleTime = &metav1.Time{Time: now.Add(-ago)} }
}
func created(ago time.Duration) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) { c.CreationTimestamp = metav1.NewTime(now.Add(-ago)) }
}
func deadline(s int64) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) { c.Spec.StartingDeadlineSeconds = &s }
}
func zone(name string) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) { c.Spec.TimeZone = &name }
}
func forbid(c *batchv1.CronJob)  { c.Spec.ConcurrencyPolicy = batchv1.ForbidConcurrent }
func replace(c *batchv1.CronJob) { c.Spec.ConcurrencyPolicy = batchv1.ReplaceConcurrent }
func suspend(c *batchv1.CronJob) { c.Spec.Suspend = ptr(true) }
func active(names ...string) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) {
		for _, n := range names {
			c.Status.Active = append(c.Status.Active, refTo(child(n)))
		}
	}
}

func child(name string, edits ...func(*batchv1.Job)) *batchv1.Job {
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, UID: types.UID(name),
			Annotations: map[string]string{batchv1.CronJobScheduledTimestampAnnotation: "then"}}}
	for _, edit := range edits {
		edit(j)
	}
	return j
}

func ended(how batchv1.JobConditionType, ago time.Duration) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		j.Status.StartTime = &metav1.Time{Time: now.Add(-ago)}
		j.Status.Conditions = []batchv1.JobCondition{{Type: how, Status: corev1.ConditionTrue}}
		if how == batchv1.JobComplete {
			j.Status.CompletionTime = &metav1.Time{Time: now.Add(-ago).Add(time.Second)}
		}
	}
}
func byHand(j *batchv1.Job) { j.Annotations = nil }

func TestDecide(t *testing.T) {
	at := func(h, m int) string {
		return "c-" + fmt.Sprint(time.Date(2026, 1, 2, h, m, 0, 0, time.UTC).Unix()/60)
	}
	const quarter = "*/15 * * * *"
	for _, c := range []struct {
		name     string
		cron     *batchv1.CronJob
		children []*batchv1.Job
		create   string
		removed  string // replaced and expired
		active   string
		events   string
		again    time.Duration
	}{
		{"due", newCron(quarter), nil, at(3, 15), "", "", "", 14*time.Minute + 50*time.Second + slack},
		{"not yet", newCron("0 * * * *"), nil, "", "", "", "", 44*time.Minute + 50*time.Second + slack},
		{"done", newCron(quarter, last(10*time.Second)), nil, "", "", "", "", 14*time.Minute + 50*time.Second + slack},
		{"made and forgotten", newCron(quarter), []*batchv1.Job{child(at(3, 15))}, "", "", at(3, 15), "",
			14*time.Minute + 50*time.Second + slack},
		{"only the last of several", newCron(quarter, last(46*time.Minute)), nil, at(3, 15), "", "", "",
			14*time.Minute + 50*time.Second + slack},
		{"of very many", newCron("* * * * *", last(24*time.Hour)), nil, at(3, 15), "", "", "TooManyMissedTimes",
			50*time.Second + slack},
		{"of very many, with a deadline", newCron("* * * * *", last(24*time.Hour), deadline(120)), nil, at(3, 15), "",
			"", "", 50*time.Second + slack},
		{"too late", newCron("0 3 * * *", created(time.Hour), deadline(60)), nil, "", "", "", "",
			23*time.Hour + 44*time.Minute + 50*time.Second + slack},
		{"just in time", newCron(quarter, deadline(11)), nil, at(3, 15), "", "", "",
			14*time.Minute + 50*time.Second + slack},
		{"suspended", newCron(quarter, suspend), nil, "", "", "", "", 0},
		{"being deleted", newCron(quarter, func(c *batchv1.CronJob) { c.DeletionTimestamp = &metav1.Time{Time: now} }),
			nil, "", "", "", "", 0},
		{"in its zone", newCron("10 22 * * *", created(time.Hour), zone("America/New_York")), nil, at(3, 10), "", "",
			"", 23*time.Hour + 54*time.Minute + 50*time.Second + slack},
		{"zone in the schedule", newCron("TZ=America/New_York 10 22 * * *", created(time.Hour)), nil, at(3, 10), "", "",
			"UnsupportedSchedule", 23*time.Hour + 54*time.Minute + 50*time.Second + slack},
		{"unknown zone", newCron(quarter, zone("Nowhere/At_All")), nil, "", "", "", "UnknownTimeZone", 0},
		{"no schedule", newCron("often"), nil, "", "", "", "UnparseableSchedule", 0},
		{"strange schedule", newCron("TZ=0"), nil, "", "", "", "UnparseableSchedule", 0},
		{"a day that never comes", newCron("0 0 31 2 *"), nil, "", "", "", "InvalidSchedule", 0},
		{"every five minutes, not yet", newCron("@every 5m", last(4*time.Minute)), nil, "", "", "", "",
			time.Minute + slack},
		{"every five minutes, with a short deadline",
			newCron("@every 5m", last(5*time.Minute+time.Second), deadline(20)), nil, at(3, 15), "", "", "",
			4*time.Minute + 59*time.Second + slack},
		{"beside another", newCron(quarter, active("a")), []*batchv1.Job{child("a")}, at(3, 15), "", "a", "",
			14*time.Minute + 50*time.Second + slack},
		{"not beside another", newCron(quarter, forbid, active("a")), []*batchv1.Job{child("a")}, "", "", "a",
			"JobAlreadyActive", 14*time.Minute + 50*time.Second + slack},
		{"not beside one that was forgotten", newCron(quarter, forbid), []*batchv1.Job{child("a")}, "", "", "a",
			"JobAlreadyActive", 14*time.Minute + 50*time.Second + slack},
		{"beside one made by hand", newCron(quarter, forbid), []*batchv1.Job{child("a", byHand)}, at(3, 15), "", "", "",
			14*time.Minute + 50*time.Second + slack},
		{"after one that has ended", newCron(quarter, forbid, active("a")),
			[]*batchv1.Job{child("a", ended(batchv1.JobFailed, time.Hour))}, at(3, 15), "", "", "SawCompletedJob",
			14*time.Minute + 50*time.Second + slack},
		{"after one that is gone", newCron(quarter, forbid, active("a")), nil, at(3, 15), "", "", "MissingJob",
			14*time.Minute + 50*time.Second + slack},
		{"instead of others", newCron(quarter, replace, active("a", "b")),
			[]*batchv1.Job{child("a"), child("b"), child("x", byHand)}, at(3, 15), "a b", "", "",
			14*time.Minute + 50*time.Second + slack},
		{"history", newCron("0 * * * *"), []*batchv1.Job{
			child("s1", ended(batchv1.JobComplete, 5*time.Hour)), child("s4", ended(batchv1.JobComplete, time.Hour)),
			child("s2", ended(batchv1.JobComplete, 4*time.Hour)), child("s3", ended(batchv1.JobComplete, 3*time.Hour)),
			child("f1", ended(batchv1.JobFailed, 9*time.Hour)), child("f2", ended(batchv1.JobFailed, 8*time.Hour)),
			child("run"),
		}, "", "f1 s1", "run", "", 44*time.Minute + 50*time.Second + slack},
		{"endless history", newCron("0 * * * *", func(c *batchv1.CronJob) { c.Spec.FailedJobsHistoryLimit = nil }),
			[]*batchv1.Job{
				child("f1", ended(batchv1.JobFailed, 9*time.Hour)), child("f2", ended(batchv1.JobFailed, 8*time.Hour))},
			"",
			"", "", "", 44*time.Minute + 50*time.Second + slack},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := decide(c.cron, c.children, now)
			create := ""
			if p.create != nil {
				create = p.create.Name
			}
			var removed, running, reasons []string
			for _, j := range slices.Concat(p.replace, p.expired) {
				removed = append(removed, j.Name)
			}
			slices.Sort(removed)
			for _, ref := range p.status.Active {
				running = append(running, ref.Name)
			}
			for _, e := range p.events {
				reasons = append(reasons, e.reason)
			}
			if create != c.create || strings.Join(removed, " ") != c.removed ||
				strings.Join(running, " ") != c.active || strings.Join(reasons, " ") != c.events || p.again != c.again {
				t.Errorf("create %q, removed %v, active %v, events %v, again %v; want %q, %q, %q, %q, %v", create,
					removed, running, reasons, p.again, c.create, c.removed, c.active, c.events, c.again)
			}
		})
	}
}

func TestJobsOfATime(t *testing.T) {
	c := newCron("10 22 * * *", created(time.Hour), zone("America/New_York"))
	j := decide(c, nil, now).create
	if j.Annotations[batchv1.CronJobScheduledTimestampAnnotation] != "2026-01-01T22:10:00-05:00" ||
		j.Annotations["a"] != "b" || j.Labels["l"] != "m" || !metav1.IsControlledBy(j, c) {
		t.Errorf("job %+v", j)
	}
	if len(c.Spec.JobTemplate.Annotations) != 1 {
		t.Error("the template itself was changed")
	}
	p := decide(newCron("0 * * * *"),
		[]*batchv1.Job{child("a", ended(batchv1.JobComplete, time.Hour)),
			child("b", ended(batchv1.JobComplete, time.Minute))}, now)
	if want := now.Add(-59 * time.Second); p.status.LastSuccessfulTime == nil ||
		!p.status.LastSuccessfulTime.Time.Equal(want) {
		t.Errorf("last success %v, want %v", p.status.LastSuccessfulTime, want)
	}
}

// latest finds the same time as a walk over all times, also over changes of summer time.
func TestLatest(t *testing.T) {
	schedules := []string{"* * * * *", "*/7 * * * *", "30 2 * * *", "0 0 1 * *", "15 3 29 2 *", "0 */6 * * 1-5",
		"@hourly", "@every 7m", "TZ=Europe/Berlin 30 2 * * *", "TZ=America/New_York */30 1-2 * * 0"}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		text := schedules[r.IntN(len(schedules))]
		s, err := cron.ParseStandard(text)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Date(2024, time.Month(1+r.IntN(12)), 1+r.IntN(28), r.IntN(24), r.IntN(60), r.IntN(60), 0, time.UTC)
		since := at.Add(-time.Duration(r.IntN(20*24*60)) * time.Minute)
		var want time.Time
		for next := s.Next(since); !next.IsZero() && !next.After(at); next = s.Next(next) {
			want = next
		}
		got, ok := latest(s, since, at)
		if ok == want.IsZero() || (ok && !got.Equal(want)) {
			t.Fatalf("seed %d: %q from %v to %v: %v, %v; want %v", seed, text, since, at, got, ok, want)
		}
	}
}

// Without any memory between two reconciles, no time has two jobs, and with Forbid and Replace no
// two run at once. A second reconcile changes nothing.
func TestNoTimeHasTwoJobs(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 9))
		c := newCron("*/5 * * * *")
		switch r.IntN(3) {
		case 0:
			forbid(c)
		case 1:
			replace(c)
		}
		at := now
		var children []*batchv1.Job
		made := map[string]bool{}
		for range 300 {
			at = at.Add(time.Duration(r.IntN(400)) * time.Second)
			p := decide(c, children, at)
			forget := r.IntN(4) == 0
			for _, gone := range slices.Concat(p.expired, p.replace) {
				children = slices.DeleteFunc(children, func(j *batchv1.Job) bool { return j == gone })
			}
			if p.create != nil {
				if made[p.create.Name] {
					t.Fatalf("seed %d: a second %s", seed, p.create.Name)
				}
				made[p.create.Name] = true
				p.create.UID = types.UID(p.create.Name)
				children = append(children, p.create)
				p.status.Active = append(p.status.Active, refTo(p.create))
				p.status.LastScheduleTime = &metav1.Time{Time: p.due}
			}
			if !forget {
				c.Status = p.status
				if again := decide(c, children, at); again.create != nil || len(again.expired)+len(again.replace) > 0 ||
					!equality.Semantic.DeepEqual(again.status, c.Status) {
					t.Fatalf("seed %d: right after: %+v", seed, again)
				}
			}
			running := 0
			for _, j := range children {
				if len(j.Status.Conditions) > 0 {
					continue
				}
				if running++; r.IntN(3) == 0 {
					j.Status.Conditions = []batchv1.JobCondition{
						{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
				}
			}
			if c.Spec.ConcurrencyPolicy != batchv1.AllowConcurrent && running > 1 {
				t.Fatalf("seed %d: %d run at a time", seed, running)
			}
			if len(children) > 20 {
				t.Fatalf("seed %d: %d jobs are kept", seed, len(children))
			}
		}
		if len(made) < 20 {
			t.Fatalf("seed %d: only %d jobs were made", seed, len(made))
		}
	}
}

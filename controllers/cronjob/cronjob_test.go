package cronjob_test

import (
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/cronjob"
)

func TestHoursOfACronJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		three, one := int32(3), int32(1)
		c := controllertest.New(t)
		c.Add(&batchv1.CronJob{
			ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "c", CreationTimestamp: metav1.Now()},
			Spec: batchv1.CronJobSpec{Schedule: "*/10 * * * *", ConcurrencyPolicy: batchv1.ForbidConcurrent,
				SuccessfulJobsHistoryLimit: &three, FailedJobsHistoryLimit: &one},
		})
		run := func() (stop func()) {
			ctrl, err := cronjob.New(cronjob.Config{Informers: c.Informers})
			if err != nil {
				t.Fatal(err)
			}
			return c.Start(ctrl.Run)
		}
		list := func() []batchv1.Job {
			l, err := c.Client.BatchV1().Jobs("d").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return l.Items
		}
		finish := func() {
			for _, j := range list() {
				if len(j.Status.Conditions) > 0 {
					continue
				}
				now := metav1.Now()
				j.Status.CompletionTime = &now
				j.Status.Conditions = []batchv1.JobCondition{
					{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: now}}
				if _, err := c.Client.BatchV1().Jobs("d").UpdateStatus(t.Context(), &j,
					metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		get := func() *batchv1.CronJob {
			cron, err := c.Client.BatchV1().CronJobs("d").Get(t.Context(), "c", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return cron
		}
		stop := run()
		time.Sleep(time.Minute) // bubbles begin at midnight
		if n := len(list()); n != 0 {
			t.Errorf("%d jobs before the first time", n)
		}
		time.Sleep(10 * time.Minute)
		if n := len(list()); n != 1 || len(get().Status.Active) != 1 {
			t.Fatalf("%d jobs at the first time, status %+v", n, get().Status)
		}
		// It runs on over the next two times, and during the second there is no leader.
		time.Sleep(10 * time.Minute)
		stop()
		time.Sleep(10 * time.Minute)
		if n := len(list()); n != 1 {
			t.Errorf("%d jobs run beside each other", n)
		}
		finish()
		stop = run()
		time.Sleep(10 * time.Second)
		if n := len(list()); n != 2 || get().Status.LastSuccessfulTime == nil {
			t.Errorf("%d jobs after the first has ended, status %+v", n, get().Status)
		}
		for range 6 {
			finish()
			time.Sleep(10 * time.Minute)
		}
		finish()
		time.Sleep(10 * time.Second)
		if n := len(list()); n != 3 || len(get().Status.Active) != 0 {
			t.Errorf("%d finished jobs are kept, status %+v", n, get().Status)
		}
		stop()
	})
}

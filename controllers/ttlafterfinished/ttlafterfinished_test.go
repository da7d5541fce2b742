package ttlafterfinished

import (
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/controllers/controllertest"
)

func example(name string, ttl int32, finished time.Time, edits ...func(*batchv1.Job)) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name},
		Spec: batchv1.JobSpec{TTLSecondsAfterFinished: &ttl}}
	j.Status.Conditions = []batchv1.JobCondition{
		{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(finished)}}
	for _, edit := range edits {
		edit(j)
	}
	return j
}

func TestLeft(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		name string
		job  *batchv1.Job
		want time.Duration
	}{
		{"some time left", example("j", 60, now.Add(-20*time.Second)), 40 * time.Second},
		{"none left", example("j", 60, now.Add(-time.Hour)), 0},
		{"at once", example("j", 0, now), 0},
		{"failed counts",
			example("j", 9, now, func(j *batchv1.Job) { j.Status.Conditions[0].Type = batchv1.JobFailed }),
			9 * time.Second},
		{"about to fail does not",
			example("j", 9, now, func(j *batchv1.Job) { j.Status.Conditions[0].Type = batchv1.JobFailureTarget }), -1},
		{"no longer finished",
			example("j", 9, now, func(j *batchv1.Job) { j.Status.Conditions[0].Status = corev1.ConditionFalse }), -1},
		{"for ever", example("j", 9, now, func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = nil }), -1},
		{"going", example("j", 0, now, func(j *batchv1.Job) { j.DeletionTimestamp = &metav1.Time{Time: now} }), -1},
	} {
		if got := left(c.job, now); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestDeletesInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t, example("short", 60, time.Now()), example("long", 3600, time.Now()))
		ctrl, err := New(Config{Informers: c.Informers})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		there := func(name string) bool {
			_, err := c.Client.BatchV1().Jobs("d").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
			return err == nil
		}
		time.Sleep(59 * time.Second)
		if !there("short") {
			t.Error("deleted too soon")
		}
		time.Sleep(3 * time.Second)
		if there("short") || !there("long") {
			t.Errorf("after its time: short is there: %v, long: %v", there("short"), there("long"))
		}
	})
}

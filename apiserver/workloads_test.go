package apiserver

import (
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	autoscalingv2ac "k8s.io/client-go/applyconfigurations/autoscaling/v2"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

func testJobs(t *testing.T, c *cluster) {
	ctx := t.Context()
	var warnings recorder
	cfg := restclient.CopyConfig(c.ca.client(t, c.host, admin()))
	cfg.WarningHandler = &warnings
	jobs := kubernetes.NewForConfigOrDie(cfg).BatchV1().Jobs("default")
	made := must(jobs.Create(ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "pi"},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}},
			Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever,
				Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}},
	}, metav1.CreateOptions{}))(t)
	for _, labels := range []map[string]string{made.Labels, made.Spec.Template.Labels} {
		if labels["app"] != "a" || labels["batch.kubernetes.io/job-name"] != made.Name ||
			labels["batch.kubernetes.io/controller-uid"] != string(made.UID) {
			t.Errorf("labels %v of job %s, %s", labels, made.Name, made.UID)
		}
	}
	if made.Generation != 1 ||
		made.Spec.Selector.MatchLabels["batch.kubernetes.io/controller-uid"] != string(made.UID) {
		t.Errorf("generation %d, selector %v", made.Generation, made.Spec.Selector)
	}

	made.Status.Succeeded = 7
	made.Spec.Suspend = ptr.To(true)
	suspended := must(jobs.Update(ctx, made, metav1.UpdateOptions{}))(t)
	if suspended.Status.Succeeded != 0 || suspended.Generation != 2 {
		t.Errorf("an update of the job wrote its status or kept its generation: %+v, %d", suspended.Status,
			suspended.Generation)
	}
	suspended.Status.Succeeded = 1
	suspended.Spec.Suspend = ptr.To(false)
	must(jobs.UpdateStatus(ctx, suspended, metav1.UpdateOptions{}))(t)
	found := must(jobs.List(ctx, metav1.ListOptions{FieldSelector: "status.successful=1,metadata.name=" + made.Name}))(
		t)
	if len(found.Items) != 1 || !*found.Items[0].Spec.Suspend {
		t.Errorf("jobs with one success: %+v", found.Items)
	}
	backwards := found.Items[0].DeepCopy()
	backwards.Status.Succeeded = 0
	if _, err := jobs.UpdateStatus(ctx, backwards, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a counter that goes back: %v", err)
	}
	if len(warnings) != 0 {
		t.Errorf("warnings before the delete: %q", warnings)
	}
	if err := jobs.Delete(ctx, made.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(warnings) != 1 ||
		!strings.HasPrefix(warnings[0], "child pods are preserved by default when jobs are deleted") {
		t.Errorf("warnings of the delete: %q", warnings)
	}
	// The garbage collector orphans its pods, and this finalizer waits for that.
	orphaning := must(jobs.Get(ctx, made.Name, metav1.GetOptions{}))(t)
	if orphaning.DeletionTimestamp == nil || len(orphaning.Finalizers) != 1 ||
		orphaning.Finalizers[0] != metav1.FinalizerOrphanDependents {
		t.Errorf("after the delete: %+v", orphaning.ObjectMeta)
	}
}

func testCronJobs(t *testing.T, c *cluster) {
	ctx, jobs := t.Context(), c.admin.BatchV1().CronJobs("default")
	cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "nightly"}, Spec: batchv1.CronJobSpec{
		Schedule: "0 3 * * *", TimeZone: ptr.To("Europe/Nowhere"),
		JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
			Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever,
				Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}}},
	}}
	_, err := jobs.Create(ctx, cron, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(),
			"spec.timeZone: Invalid value: \"Europe/Nowhere\": unknown time zone Europe/Nowhere") {
		t.Errorf("a time zone that there is not: %v", err)
	}
	cron.Spec.TimeZone = ptr.To("Europe/Berlin")
	made := must(jobs.Create(ctx, cron, metav1.CreateOptions{}))(t)
	made.Status.Active = []corev1.ObjectReference{{Name: "nightly-1"}}
	written := must(jobs.UpdateStatus(ctx, made, metav1.UpdateOptions{}))(t)
	if len(written.Status.Active) != 1 || written.Generation != 1 || *written.Spec.SuccessfulJobsHistoryLimit != 3 {
		t.Errorf("after a write of the status: %+v", written)
	}
}

func testAutoscalers(t *testing.T, c *cluster) {
	ctx := t.Context()
	v1, v2 := c.admin.AutoscalingV1().HorizontalPodAutoscalers("default"),
		c.admin.AutoscalingV2().HorizontalPodAutoscalers("default")
	made := must(
		v1.Create(ctx,
			&autoscalingv1.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "web"},
				Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
					ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment",
						Name: "web"}, MaxReplicas: 3,
				}}, metav1.CreateOptions{}))(t)
	if *made.Spec.MinReplicas != 1 || *made.Spec.TargetCPUUtilizationPercentage != 80 || made.Generation != 1 {
		t.Errorf("made by v1: %+v", made)
	}
	// The behavior has no field in v1, and survives an update by a client of v1.
	applied := autoscalingv2ac.HorizontalPodAutoscaler("web", "default").WithSpec(
		autoscalingv2ac.HorizontalPodAutoscalerSpec().
			WithBehavior(
				autoscalingv2ac.HorizontalPodAutoscalerBehavior().WithScaleDown(
					autoscalingv2ac.HPAScalingRules().WithStabilizationWindowSeconds(7))))
	must(v2.Apply(ctx, applied, metav1.ApplyOptions{FieldManager: "test"}))(t)
	read := must(v1.Get(ctx, "web", metav1.GetOptions{}))(t)
	if !strings.Contains(read.Annotations["autoscaling.alpha.kubernetes.io/behavior"],
		`"ScaleDown":{"StabilizationWindowSeconds":7`) {
		t.Errorf("annotations of v1: %v", read.Annotations)
	}
	read.Spec.MaxReplicas = 4
	must(v1.Update(ctx, read, metav1.UpdateOptions{}))(t)
	got := must(v2.Get(ctx, "web", metav1.GetOptions{}))(t)
	if got.Spec.MaxReplicas != 4 || len(got.Annotations) != 0 || got.Generation != 3 ||
		*got.Spec.Behavior.ScaleDown.StabilizationWindowSeconds != 7 || len(got.Spec.Metrics) != 1 {
		t.Errorf("after an update by v1: %+v", got)
	}
	read = must(v1.Get(ctx, "web", metav1.GetOptions{}))(t)
	read.Status.CurrentReplicas, read.Status.CurrentCPUUtilizationPercentage = 2, ptr.To[int32](40)
	must(v1.UpdateStatus(ctx, read, metav1.UpdateOptions{}))(t)
	got = must(v2.Get(ctx, "web", metav1.GetOptions{}))(t)
	if got.Status.CurrentReplicas != 2 || len(got.Status.CurrentMetrics) != 1 ||
		*got.Status.CurrentMetrics[0].Resource.Current.AverageUtilization != 40 {
		t.Errorf("status written by v1: %+v", got.Status)
	}
	groups := must(c.admin.Discovery().ServerGroups())(t)
	for _, g := range groups.Groups {
		if g.Name == "autoscaling" && (len(g.Versions) != 2 || g.PreferredVersion.Version != "v2") {
			t.Errorf("versions of the group: %+v", g)
		}
	}
}

package job_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/job"
)

func ptr[T any](v T) *T { return &v }

func example(parallelism, completions int32) *batchv1.Job {
	labels := map[string]string{"job-name": "j"}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "j"},
		Spec: batchv1.JobSpec{
			Parallelism: &parallelism, Completions: &completions, BackoffLimit: ptr(int32(2)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever,
					Containers: []corev1.Container{{Name: "c"}}}},
		},
	}
}

type world struct {
	*controllertest.Cluster
	t    *testing.T
	ctrl *job.Controller
}

// newWorld runs pods for a minute each; ends returns the phase at a pod's end, "" for never.
func newWorld(t *testing.T, ends func(*corev1.Pod) corev1.PodPhase) *world {
	c := controllertest.New(t)
	ctrl, err := job.New(job.Config{Informers: c.Informers})
	if err != nil {
		t.Fatal(err)
	}
	c.RunPods("n", func(*corev1.Pod) bool { return true })
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	_, err = c.Informers.Core().V1().Pods().Informer().AddEventHandler(
		cache.ResourceEventHandlerFuncs{UpdateFunc: func(was, is any) {
			old, pod := was.(*corev1.Pod), is.(*corev1.Pod)
			phase := ends(pod)
			if phase == "" || pod.Status.Phase != corev1.PodRunning || old.Status.Phase == corev1.PodRunning {
				return
			}
			wg.Go(func() {
				select {
				case <-time.After(time.Minute):
				case <-ctx.Done():
					return
				}
				for range 5 {
					now, err := c.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
					if err != nil {
						return
					}
					now.Status.Phase = phase
					now.Status.Conditions = []corev1.PodCondition{
						{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}}
					if _, err := c.Client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, now,
						metav1.UpdateOptions{}); err == nil {
						return
					}
				}
			})
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
	return &world{c, t, ctrl}
}

func succeed(*corev1.Pod) corev1.PodPhase { return corev1.PodSucceeded }
func fail(*corev1.Pod) corev1.PodPhase    { return corev1.PodFailed }
func never(*corev1.Pod) corev1.PodPhase   { return "" }

func (w *world) job() *batchv1.Job {
	w.t.Helper()
	j, err := w.Client.BatchV1().Jobs("d").Get(w.t.Context(), "j", metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return j
}

func (w *world) pods() []corev1.Pod {
	w.t.Helper()
	l, err := w.Client.CoreV1().Pods("d").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return l.Items
}

func (w *world) change(edit func(*batchv1.Job)) {
	w.t.Helper()
	controllertest.Eventually(w.t, "the edit of the job", func() bool {
		j := w.job()
		edit(j)
		_, err := w.Client.BatchV1().Jobs("d").Update(w.t.Context(), j, metav1.UpdateOptions{})
		return err == nil
	})
}

func has(j *batchv1.Job, t batchv1.JobConditionType, reason string) bool {
	return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == t && c.Status == corev1.ConditionTrue && c.Reason == reason
	})
}

func (w *world) eventually(what string, holds func() bool) {
	w.t.Helper()
	controllertest.Eventually(w.t, what, holds)
}

func (w *world) noFinalizers() {
	w.t.Helper()
	for _, p := range w.pods() {
		if len(p.Finalizers) > 0 {
			w.t.Errorf("pod %s keeps %v", p.Name, p.Finalizers)
		}
	}
}

func TestCompletes(t *testing.T) {
	for _, mode := range []batchv1.CompletionMode{batchv1.NonIndexedCompletion, batchv1.IndexedCompletion} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, succeed)
			j := example(2, 5)
			j.Spec.CompletionMode = &mode
			w.Add(j)
			stop := w.Start(w.ctrl.Run)
			w.eventually("two pods", func() bool { return w.job().Status.Active == 2 && *w.job().Status.Ready == 2 })
			// The leader changes in the middle.
			w.eventually("the first pods are counted", func() bool { return w.job().Status.Succeeded > 0 })
			stop()
			w.Start(w.ctrl.Run)
			time.Sleep(2 * time.Minute)
			w.eventually("completion",
				func() bool { return has(w.job(), batchv1.JobComplete, batchv1.JobReasonCompletionsReached) })
			s := w.job().Status
			if s.Succeeded != 5 || s.Failed != 0 || s.Active != 0 || s.CompletionTime == nil || s.StartTime == nil ||
				len(w.pods()) != 5 ||
				!has(w.job(), batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached) {
				t.Errorf("%s: %+v, %d pods", mode, s, len(w.pods()))
			}
			if mode == batchv1.IndexedCompletion && s.CompletedIndexes != "0-4" {
				t.Errorf("completed indexes %s", s.CompletedIndexes)
			}
			w.noFinalizers()
		})
	}
}

func TestFailsAfterBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, fail)
		w.Add(example(1, 1))
		w.Start(w.ctrl.Run)
		began := time.Now()
		time.Sleep(209 * time.Second)
		if has(w.job(), batchv1.JobFailed, batchv1.JobReasonBackoffLimitExceeded) {
			t.Error("it has failed too soon")
		}
		w.eventually("failure",
			func() bool { return has(w.job(), batchv1.JobFailed, batchv1.JobReasonBackoffLimitExceeded) })
		// Three pods of a minute each, with 10 s and 20 s between them.
		if took := time.Since(began); took > 220*time.Second {
			t.Errorf("it took %v", took)
		}
		if s := w.job().Status; s.Failed != 3 || s.Active != 0 || s.CompletionTime != nil ||
			!has(w.job(), batchv1.JobFailureTarget, batchv1.JobReasonBackoffLimitExceeded) || len(w.pods()) != 3 {
			t.Errorf("%+v, %d pods", s, len(w.pods()))
		}
		w.noFinalizers()
	})
}

func TestSuspendAndDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, never)
		j := example(3, 3)
		j.Spec.Suspend, j.Spec.ActiveDeadlineSeconds = ptr(true), ptr(int64(30))
		w.Add(j)
		w.Start(w.ctrl.Run)
		w.eventually("the condition", func() bool { return has(w.job(), batchv1.JobSuspended, "JobSuspended") })
		time.Sleep(time.Hour)
		if len(w.pods()) != 0 || w.job().Status.StartTime != nil {
			t.Fatalf("while suspended: %d pods, %+v", len(w.pods()), w.job().Status)
		}
		w.change(func(j *batchv1.Job) { j.Spec.Suspend = ptr(false) })
		w.eventually("three pods", func() bool { return w.job().Status.Active == 3 })
		w.change(func(j *batchv1.Job) { j.Spec.Suspend = ptr(true) })
		w.eventually("no pod",
			func() bool { return len(w.pods()) == 0 && w.job().Status.Active == 0 && w.job().Status.Failed == 0 })
		time.Sleep(time.Hour)
		w.change(func(j *batchv1.Job) { j.Spec.Suspend = ptr(false) })
		began := time.Now()
		w.eventually("the deadline",
			func() bool { return has(w.job(), batchv1.JobFailed, batchv1.JobReasonDeadlineExceeded) })
		if took := time.Since(began); took < 29*time.Second || took > 40*time.Second {
			t.Errorf("the deadline came after %v", took)
		}
		if s := w.job().Status; s.Failed != 3 || s.Active != 0 || len(w.pods()) != 0 {
			t.Errorf("%+v, %d pods", s, len(w.pods()))
		}
	})
}

// The pods of a deleted job are released; the pods of a job with another manager are left alone.
func TestOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, never)
		w.Add(example(2, 2))
		foreign := example(2, 2)
		foreign.Name, foreign.Spec.ManagedBy = "foreign", ptr("example.com/other")
		w.Add(foreign)
		w.Add(
			&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "theirs",
					Finalizers: []string{batchv1.JobTrackingFinalizer},
					OwnerReferences: []metav1.OwnerReference{
						*metav1.NewControllerRef(foreign, batchv1.SchemeGroupVersion.WithKind("Job"))}}})
		w.Start(w.ctrl.Run)
		w.eventually("two pods", func() bool { return w.job().Status.Active == 2 })
		if err := w.Client.BatchV1().Jobs("d").Delete(t.Context(), "j", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "no finalizer but the other controller's", func() bool {
			for _, p := range w.pods() {
				if (p.Name == "theirs") != (len(p.Finalizers) == 1) {
					return false
				}
			}
			return len(w.pods()) == 3
		})
		time.Sleep(time.Minute)
		if f, err := w.Client.BatchV1().Jobs("d").Get(t.Context(), "foreign", metav1.GetOptions{}); err != nil ||
			f.Status.StartTime != nil || len(w.pods()) != 3 {
			t.Errorf("somebody else's job: %+v, %v, %d pods", f.Status, err, len(w.pods()))
		}
	})
}

// A matching pod without an owner is adopted, tracked and counted.
func TestAdoption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, succeed)
		w.Add(example(2, 2))
		w.Add(
			&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "orphan",
					Labels: map[string]string{"job-name": "j"}}})
		w.Start(w.ctrl.Run)
		w.eventually("completion",
			func() bool { return has(w.job(), batchv1.JobComplete, batchv1.JobReasonCompletionsReached) })
		if n := len(w.pods()); n != 2 {
			t.Errorf("%d pods: %s", n, fmt.Sprint(w.pods()))
		}
		w.noFinalizers()
	})
}

// Pods that are refused are tried again with the back-off of errors.
func TestFailingCreationIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, never)
		w.Add(example(1, 1))
		var tries atomic.Int32
		w.Client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, kruntime.Object, error) {
			tries.Add(1)
			return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota"))
		})
		w.Start(w.ctrl.Run)
		time.Sleep(10 * time.Minute)
		if n := tries.Load(); n < 10 || n > 50 {
			t.Errorf("%d creations were tried in ten minutes", n)
		}
	})
}

// The leader before has counted a pod, and the informer of pods shows it with its finalizer still.
func TestLaggingInformerCountsNothingTwice(t *testing.T) {
	for name, live := range map[string]func(corev1.Pod) []corev1.Pod{
		"released": func(p corev1.Pod) []corev1.Pod {
			p.Finalizers, p.ResourceVersion = nil, "1000000"
			return []corev1.Pod{p}
		},
		"gone": func(corev1.Pod) []corev1.Pod { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, never)
				j := example(1, 2)
				j.Status = batchv1.JobStatus{Succeeded: 1, StartTime: ptr(metav1.Now()),
					UncountedTerminatedPods: &batchv1.UncountedTerminatedPods{}}
				w.Add(j)
				pod := &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "p", Labels: map[string]string{"job-name": "j"},
						Finalizers: []string{batchv1.JobTrackingFinalizer},
						OwnerReferences: []metav1.OwnerReference{
							*metav1.NewControllerRef(j, batchv1.SchemeGroupVersion.WithKind("Job"))}},
					Status: corev1.PodStatus{Phase: corev1.PodSucceeded},
				}
				w.Add(pod)
				w.Client.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, kruntime.Object, error) {
					if list, ok := a.(clienttesting.ListActionImpl); ok && list.ListOptions.LabelSelector != "" {
						return true, &corev1.PodList{Items: live(*pod.DeepCopy())}, nil
					}
					return false, nil, nil
				})
				w.Start(w.ctrl.Run)
				time.Sleep(time.Minute)
				if s := w.job().Status; s.Succeeded+int32(len(s.UncountedTerminatedPods.Succeeded)) != 1 {
					t.Errorf("counted again: %+v", s)
				}
			})
		})
	}
}

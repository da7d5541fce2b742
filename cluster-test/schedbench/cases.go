package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/cluster-test/figure"
)

// podSpec is that of all pods.
func (b *bench) podSpec() corev1.PodSpec {
	return corev1.PodSpec{SchedulerName: b.scheduler, Containers: []corev1.Container{{
		Name: "c", Image: "example.com/none:1",
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"),
				corev1.ResourceMemory: resource.MustParse("64Mi")}},
	}}}
}

// bindPods creates pods as fast as the servers take them, and measures until all are bound.
func bindPods(ctx context.Context, b *bench) ([]figure.Figure, error) {
	before, err := b.usage()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	created, err := b.createPods(ctx, 0, b.options.pods)
	if err != nil {
		return nil, err
	}
	creating := time.Since(began)
	if err := b.untilBound(ctx, created); err != nil {
		return nil, err
	}
	waits, last := b.waits(created)
	figures := []figure.Figure{
		figure.One("pods created in a second", "", rate(b.options.pods, creating)),
		figure.One("pods bound in a second, from the first creation to the last binding", "",
			rate(b.options.pods, last.Sub(began))),
	}
	figures = append(figures, figure.Percentiles("created until the node sees it", "s", waits)...)
	used, err := b.used(before)
	return append(figures, used...), err
}

func podName(i int) string { return fmt.Sprintf("p%06d", i) }

// createPods makes pods of consecutive numbers, and returns by their names when the creation of
// each was answered.
func (b *bench) createPods(ctx context.Context, from, n int) (map[string]time.Time, error) {
	created := make(map[string]time.Time, n)
	var mu sync.Mutex
	err := b.each(ctx, n, func(ctx context.Context, i int) error {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: podName(from + i),
				Labels: map[string]string{"app": fmt.Sprint(i % 50)}}, Spec: b.podSpec()}
		return b.send(ctx, func() error {
			_, err := b.client(i).CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
			mu.Lock()
			created[pod.Name] = time.Now()
			mu.Unlock()
			return err
		})
	})
	return created, err
}

// untilBound waits until pods are seen bound.
func (b *bench) untilBound(ctx context.Context, created map[string]time.Time) error {
	return b.untilNone(ctx, "pods are not bound", func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		left := 0
		for name := range created {
			if b.seen[name].IsZero() {
				left++
			}
		}
		return left
	})
}

// waits are the times from a pod's creation until its node saw it; last is when that was of the
// last one.
func (b *bench) waits(created map[string]time.Time) ([]time.Duration, time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return waits(created, b.seen)
}

func waits(created, seen map[string]time.Time) (out []time.Duration, last time.Time) {
	for name, at := range created {
		s := seen[name]
		if s.After(last) {
			last = s
		}
		// A pod may be seen bound before its creator has the answer.
		out = append(out, max(0, s.Sub(at)))
	}
	return out, last
}

// rollOut changes the template of Deployments at once, and measures until all are rolled out.
func rollOut(ctx context.Context, b *bench) ([]figure.Figure, error) {
	replicas := int32(b.options.pods / b.deployments)
	name := func(i int) string { return fmt.Sprintf("d%03d", i) }
	list, err := b.watch(ctx, func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
		return f.Apps().V1().Deployments().Informer()
	})
	if err != nil {
		return nil, err
	}
	progress("making %d Deployments of %d", b.deployments, replicas)
	began := time.Now()
	err = b.each(ctx, b.deployments, func(ctx context.Context, i int) error {
		return b.send(ctx, func() error {
			_, err := b.client(i).AppsV1().Deployments(namespace).Create(ctx, b.deployment(name(i), replicas),
				metav1.CreateOptions{})
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	// revision is the template's: an informer that is late must not be believed.
	rolledOut := func(revision string) error {
		return b.untilNone(ctx, "pods of the Deployments are still to be made, to start or to go", func() int {
			listed := list.List()
			left := (b.deployments - len(listed)) * int(2*replicas)
			for _, obj := range listed {
				left += toRoll(obj, revision)
			}
			return left
		})
	}
	if err := rolledOut(""); err != nil {
		return nil, err
	}
	first := time.Since(began)
	progress("rolling them")
	before, err := b.usage()
	if err != nil {
		return nil, err
	}
	began = time.Now()
	err = b.each(ctx, b.deployments, func(ctx context.Context, i int) error {
		return b.send(ctx, func() error {
			_, err := b.client(i).AppsV1().Deployments(namespace).Patch(ctx, name(i), types.StrategicMergePatchType,
				fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{%q:"2"}}}}}`, rolled),
				metav1.PatchOptions{})
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	if err := rolledOut("2"); err != nil {
		return nil, err
	}
	took := time.Since(began)
	figures := []figure.Figure{
		figure.One(fmt.Sprintf("%d Deployments of %d made, until available", b.deployments, replicas), "s",
			first.Seconds()),
		figure.One("all rolled at once, until done", "s", took.Seconds()),
		figure.One("pods replaced in a second", "", rate(b.deployments*int(replicas), took)),
	}
	used, err := b.used(before)
	return append(figures, used...), err
}

// rolled is the annotation by which a template differs from the one before.
const rolled = "roll"

func (b *bench) deployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: b.podSpec()},
		},
	}
}

// toRoll is the number of changes that a Deployment lacks until all its pods are available and made
// from the template: 0 when there is nothing left. It falls while pods are replaced, when no
// Deployment is done yet.
func toRoll(obj any, revision string) int {
	d, ok := obj.(*appsv1.Deployment)
	if !ok {
		return 1
	}
	s, want := d.Status, *d.Spec.Replicas
	if d.Spec.Template.Annotations[rolled] != revision || s.ObservedGeneration < d.Generation {
		return int(2 * want)
	}
	return int(max(0, want-s.UpdatedReplicas) + max(0, want-s.AvailableReplicas) + max(0, s.Replicas-want))
}

// runJobs makes Jobs of one pod each, and measures until all are complete.
func runJobs(ctx context.Context, b *bench) ([]figure.Figure, error) {
	list, err := b.watch(ctx, func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
		return f.Batch().V1().Jobs().Informer()
	})
	if err != nil {
		return nil, err
	}
	before, err := b.usage()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	err = b.each(ctx, b.jobs, func(ctx context.Context, i int) error {
		spec := b.podSpec()
		spec.RestartPolicy = corev1.RestartPolicyNever
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("j%04d", i)},
			Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: spec}}}
		return b.send(ctx, func() error {
			_, err := b.client(i).BatchV1().Jobs(namespace).Create(ctx, job, metav1.CreateOptions{})
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	creating := time.Since(began)
	if err := b.untilNone(ctx, "Jobs are not complete",
		func() int { return b.jobs - count(list.List(), isComplete) }); err != nil {
		return nil, err
	}
	took := time.Since(began)
	figures := []figure.Figure{
		figure.One("Jobs created in a second", "", rate(b.jobs, creating)),
		figure.One(fmt.Sprintf("%d Jobs, until complete", b.jobs), "s", took.Seconds()),
		figure.One("Jobs completed in a second", "", rate(b.jobs, took)),
	}
	used, err := b.used(before)
	return append(figures, used...), err
}

func isComplete(obj any) bool {
	j, ok := obj.(*batchv1.Job)
	return ok && slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue
	})
}

func count(all []any, is func(any) bool) int {
	n := 0
	for _, obj := range all {
		if is(obj) {
			n++
		}
	}
	return n
}

func rate(n int, took time.Duration) float64 { return float64(n) / took.Seconds() }

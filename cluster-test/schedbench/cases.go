package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/cluster-test/sides"
)

const (
	deployments = 100
	kills       = 3
	// coarse is how often is looked for the end of what takes long.
	coarse = 200 * time.Millisecond
)

// podSpec is that of all pods.
func podSpec() corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Image: "example.com/none:1",
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi")}},
	}}}
}

// bindPods creates pods as fast as the servers take them, and measures until all are bound.
func bindPods(ctx context.Context, b *bench) ([]line, error) {
	before, err := b.Use()
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
	after, err := b.Use()
	waits, last := b.waits(created)
	return []line{
		{"created in a second", rate(b.options.pods, creating)},
		{"bound in a second, from the first creation to the last binding", rate(b.options.pods, last.Sub(began))},
		{"created until seen bound, p50 and p99", percentiles(waits)},
		used(before, after),
	}, err
}

func podName(i int) string { return fmt.Sprintf("p%06d", i) }

// createPods makes pods of consecutive numbers, and returns when the creation of each was answered.
func (b *bench) createPods(ctx context.Context, from, n int) (map[types.UID]time.Time, error) {
	created := make(map[types.UID]time.Time, n)
	var mu sync.Mutex
	err := b.each(ctx, n, func(ctx context.Context, i int) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: podName(from + i), Labels: map[string]string{"app": fmt.Sprint(i % 50)}}, Spec: podSpec()}
		made, err := b.client(i).CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		created[made.UID] = time.Now()
		return nil
	})
	return created, err
}

// untilBound waits until pods are seen bound.
func (b *bench) untilBound(ctx context.Context, created map[types.UID]time.Time) error {
	return b.untilNone(ctx, "pods are not bound", func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		left := 0
		for uid := range created {
			if b.seen[uid].IsZero() {
				left++
			}
		}
		return left
	})
}

// waits are the times from a pod's creation until it was seen bound; last is when the last one was.
func (b *bench) waits(created map[types.UID]time.Time) (waits []time.Duration, last time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for uid, at := range created {
		seen := b.seen[uid]
		if seen.After(last) {
			last = seen
		}
		// A pod may be seen bound before its creator has the answer.
		waits = append(waits, max(0, seen.Sub(at)))
	}
	return waits, last
}

// rollOut changes the template of Deployments at once, and measures until all are rolled out.
func rollOut(ctx context.Context, b *bench) ([]line, error) {
	replicas := int32(b.options.pods / deployments)
	name := func(i int) string { return fmt.Sprintf("d%03d", i) }
	progress("making %d Deployments of %d", deployments, replicas)
	began := time.Now()
	err := b.each(ctx, deployments, func(ctx context.Context, i int) error {
		labels := map[string]string{"app": name(i)}
		_, err := b.client(i).AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: name(i)},
			Spec: appsv1.DeploymentSpec{
				Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec()},
			},
		}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return nil, err
	}
	rolledOut := func() error {
		list, err := b.client(0).AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		waiting := deployments
		for _, d := range list.Items {
			s := d.Status
			if s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == replicas && s.Replicas == replicas && s.AvailableReplicas == replicas {
				waiting--
			}
		}
		if waiting > 0 {
			return fmt.Errorf("%d Deployments are not rolled out", waiting)
		}
		return nil
	}
	if err := b.untilSlow(ctx, rolledOut); err != nil {
		return nil, err
	}
	first := time.Since(began)
	progress("rolling them")
	before, err := b.Use()
	if err != nil {
		return nil, err
	}
	began = time.Now()
	err = b.each(ctx, deployments, func(ctx context.Context, i int) error {
		_, err := b.client(i).AppsV1().Deployments(namespace).Patch(ctx, name(i), types.StrategicMergePatchType,
			[]byte(`{"spec":{"template":{"metadata":{"annotations":{"roll":"2"}}}}}`), metav1.PatchOptions{})
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := b.untilSlow(ctx, rolledOut); err != nil {
		return nil, err
	}
	took := time.Since(began)
	after, err := b.Use()
	return []line{
		{fmt.Sprintf("%d Deployments of %d made, until available", deployments, replicas), seconds(first)},
		{"all rolled at once, until done", seconds(took)},
		used(before, after),
	}, err
}

// runJobs makes Jobs of one pod each, and measures until all are complete.
func runJobs(ctx context.Context, b *bench) ([]line, error) {
	before, err := b.Use()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	err = b.each(ctx, b.jobs, func(ctx context.Context, i int) error {
		spec := podSpec()
		spec.RestartPolicy = corev1.RestartPolicyNever
		_, err := b.client(i).BatchV1().Jobs(namespace).Create(ctx, &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("j%04d", i)},
			Spec:       batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: spec}},
		}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := b.untilSlow(ctx, func() error {
		list, err := b.client(0).BatchV1().Jobs(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		waiting := b.jobs
		for _, j := range list.Items {
			if slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
				return c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue
			}) {
				waiting--
			}
		}
		if waiting > 0 {
			return fmt.Errorf("%d Jobs are not complete", waiting)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	took := time.Since(began)
	after, err := b.Use()
	return []line{{fmt.Sprintf("%d Jobs, until complete", b.jobs), seconds(took)}, {"Jobs in a second", rate(b.jobs, took)}, used(before, after)}, err
}

// takeOver kills the leader, scales a Deployment through another server, and measures from the
// kill.
func takeOver(ctx context.Context, b *bench) ([]line, error) {
	labels, one := map[string]string{"app": "takeover"}, int32(1)
	_, err := b.client(0).AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "takeover"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec()},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	var wrote, made, bound []string
	for i := range kills {
		want := i + 1
		if err := b.until(ctx, func() error { return b.boundPods(ctx, b.client(0), want) }); err != nil {
			return nil, fmt.Errorf("before kill %d: %w", want, err)
		}
		killed, err := b.KillLeader(ctx)
		if err != nil {
			return nil, err
		}
		client, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: killed.Others[0].URL, QPS: -1}, killed.Others[0].Client())
		if err != nil {
			return nil, err
		}
		since := func(check func() error) (string, error) {
			err := b.until(ctx, check)
			return fmt.Sprintf("%.2f s", time.Since(killed.At).Seconds()), err
		}
		scaled := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, want+1)
		for _, step := range []struct {
			of    *[]string
			check func() error
		}{
			{&wrote, func() error {
				ctx, cancel := context.WithTimeout(ctx, time.Second) // brief: then it is tried again
				defer cancel()
				_, err := client.AppsV1().Deployments(namespace).Patch(ctx, "takeover", types.MergePatchType, scaled, metav1.PatchOptions{})
				return err
			}},
			{&made, func() error { return b.countPods(ctx, client, want+1, false) }},
			{&bound, func() error { return b.boundPods(ctx, client, want+1) }},
		} {
			figure, err := since(step.check)
			if err != nil {
				return nil, err
			}
			*step.of = append(*step.of, figure)
		}
		if err := killed.Start(); err != nil {
			return nil, err
		}
	}
	return []line{
		{"kill of the leader until a write is taken", strings.Join(wrote, " / ")},
		{"until its controller acts", strings.Join(made, " / ")},
		{"until the scheduler acts", strings.Join(bound, " / ")},
	}, nil
}

func (b *bench) boundPods(ctx context.Context, client kubernetes.Interface, want int) error {
	return b.countPods(ctx, client, want, true)
}

// countPods reports whether there are as many pods as wanted, bound ones or all.
func (b *bench) countPods(ctx context.Context, client kubernetes.Interface, want int, bound bool) error {
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	n := 0
	for _, p := range list.Items {
		if !bound || p.Spec.NodeName != "" {
			n++
		}
	}
	if n < want {
		return fmt.Errorf("%d of %d pods", n, want)
	}
	return nil
}

// untilSlow is until for what takes many seconds: to look costs the servers something.
func (b *bench) untilSlow(ctx context.Context, check func() error) error {
	return b.until(ctx, func() error {
		err := check()
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(coarse): // brief: the interval of a poll
			}
		}
		return err
	})
}

// untilNone waits until none is left of something, as long as their number changes in each five
// minutes.
func (b *bench) untilNone(ctx context.Context, what string, count func() int) error {
	left := count()
	for left > 0 {
		before := left
		if err := b.untilSlow(ctx, func() error {
			if left = count(); left == before {
				return fmt.Errorf("%d %s", left, what)
			}
			return nil
		}); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(coarse): // brief: the interval of a poll
		}
	}
	return nil
}

func rate(n int, took time.Duration) string { return fmt.Sprintf("%.0f", float64(n)/took.Seconds()) }

func seconds(took time.Duration) string { return fmt.Sprintf("%.1f s", took.Seconds()) }

// percentiles shows the median and the 99th percentile.
func percentiles(all []time.Duration) string {
	if len(all) == 0 {
		return "none"
	}
	slices.Sort(all)
	at := func(share float64) string {
		d := all[int(share*float64(len(all)-1))]
		if d < time.Second {
			return fmt.Sprintf("%.1f ms", d.Seconds()*1000)
		}
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return at(0.5) + ", " + at(0.99)
}

// used shows what all processes of a side have taken.
func used(before, after sides.Usage) line {
	return line{"CPU time; memory of all (RssAnon)", fmt.Sprintf("%.1f s; %.0f MiB", (after.CPU - before.CPU).Seconds(), after.Anonymous)}
}

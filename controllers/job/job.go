// Package job runs Jobs. It keeps the wanted number of pods running and counts each ended pod once.
// It ends the job by its numbers, its limits and its policies.
//
// All choices are made by decide. The count is in the status and in the pods: a pod has the
// tracking finalizer until the status counts it. Only the series of failures that delays the next
// pod is kept in memory; a new leader begins it from the existing pods.
package job

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/claim"
	"github.com/barque/barque/controllers/pods"
	"github.com/barque/barque/controllers/runtime"
)

var kind = batchv1.SchemeGroupVersion.WithKind("Job")

// batch is the pause between reconciles of a job that only pods have caused: many end at a time,
// and each reconcile may write the status.
const batch = time.Second

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// Workers is how many jobs are worked on at once. Default 5.
	Workers int
}

// Controller reconciles Jobs.
type Controller struct {
	cfg  Config
	jobs cache.SharedIndexInformer
	pods cache.SharedIndexInformer
	list batchlisters.JobLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.Workers <= 0 {
		cfg.Workers = 5
	}
	jobs := cfg.Informers.Batch().V1().Jobs()
	c := &Controller{cfg: cfg, jobs: jobs.Informer(), list: jobs.Lister(),
		pods: cfg.Informers.Core().V1().Pods().Informer()}
	return c, runtime.EnsureControllerIndex(c.pods)
}

// Run reconciles for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, "job-controller")
	defer stop()
	t := &term{Controller: c, client: client, memories: map[types.UID]memory{}}
	t.fresh.Owners, t.fresh.Newest = c.jobs, pods.Newest(client.BatchV1().Jobs(metav1.NamespaceAll).List)
	t.loop = runtime.NewLoop("job", c.cfg.Workers, c.cfg.Logger, t.reconcile)
	t.control = pods.Control{Client: client, Recorder: recorder, Loop: t.loop, Informer: c.pods}
	runtime.WatchOwners[batchv1.Job](t.loop, c.jobs, t.forget)
	runtime.WatchOwned(t.loop, c.pods, kind, t.matching)
	orphans := t.orphans()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var other error
	var wg sync.WaitGroup
	wg.Go(func() { other = orphans.Run(ctx); cancel() })
	err := t.loop.Run(ctx)
	cancel()
	wg.Wait()
	return errors.Join(err, other)
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client  kubernetes.Interface
	control pods.Control
	loop    *runtime.Loop
	fresh   pods.Fresh

	mu       sync.Mutex
	memories map[types.UID]memory
}

// memory is the state of a job between two reconciles.
type memory struct {
	backoff    backoff
	at         time.Time // of the last look
	generation int64     // of the job then
}

func (t *term) forget(uid types.UID) {
	t.fresh.Forget(uid)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.memories, uid)
}

// matching returns the jobs that may adopt a pod.
func (t *term) matching(pod *corev1.Pod, going bool) []runtime.Key {
	if going {
		return nil
	}
	all, err := t.list.Jobs(pod.Namespace).List(labels.Everything())
	if err != nil {
		return nil
	}
	return runtime.Selecting(all, func(job *batchv1.Job) *metav1.LabelSelector { return job.Spec.Selector }, pod)
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	job, err := t.list.Jobs(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if managedElsewhere(job) {
		return 0, nil
	}
	if finished(job) {
		t.forget(job.UID)
		return 0, nil
	}
	now := time.Now()
	if wait := t.early(job, now); wait > 0 {
		return wait, nil
	}
	again, err := t.step(ctx, key, job, now)
	if err != nil || again == runtime.Retry {
		t.failed(job.UID)
	}
	return again, err
}

// step is one look at a job that has not finished.
func (t *term) step(ctx context.Context, key runtime.Key, job *batchv1.Job, now time.Time) (time.Duration, error) {
	selector, err := metav1.LabelSelectorAsSelector(job.Spec.Selector)
	if err != nil {
		return 0, fmt.Errorf("selector of Job %s: %w", key, err)
	}
	owner := claim.Owner{Object: job, Kind: kind, Selector: selector,
		Finalizers: []string{batchv1.JobTrackingFinalizer},
		Read:       claim.ReadBy(t.client.BatchV1().Jobs(job.Namespace), job.Name)}
	mine, err := claim.Objects(ctx, t.loop, key, t.pods, owner, t.client.CoreV1().Pods(job.Namespace))
	if err != nil {
		return 0, err
	}
	p := decide(observed{job: job, pods: mine, backoff: t.backoffOf(job, mine)}, now)
	// A pod would be counted again while the informers do not show its lost finalizer, or the
	// status that counts it.
	if len(p.create)+len(p.release)+len(p.kill)+len(p.discard) > 0 {
		if behind, err := t.fresh.Behind(ctx, t.client, t.pods, owner, mine); err != nil || behind {
			return runtime.Retry, err
		}
	}
	return p.again, t.act(ctx, key, job, p)
}

// early returns the wait before another reconcile of a job with an unchanged spec.
func (t *term) early(job *batchv1.Job, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, seen := t.memories[job.UID]
	if left := m.at.Add(batch).Sub(now); seen && m.generation == job.Generation && left > 0 {
		return max(left, 100*time.Millisecond) // shorter ones would count as failures
	}
	m.at, m.generation = now, job.Generation
	if !seen {
		m.backoff.failures = unknown
	}
	t.memories[job.UID] = m
	return 0
}

// failed records that the last reconcile did not complete. The key's back-off then sets the next
// one, and early does not shorten it.
func (t *term) failed(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m, known := t.memories[uid]; known {
		m.at = time.Time{}
		t.memories[uid] = m
	}
}

// unknown marks a series of failures that was not counted in this term.
const unknown = -1

// backoffOf returns the row of failures before this look. A new leader takes it from the pods that
// have been counted.
func (t *term) backoffOf(job *batchv1.Job, mine []*corev1.Pod) backoff {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.memories[job.UID]
	if m.backoff.failures != unknown {
		return m.backoff
	}
	var succeeded, failed []*corev1.Pod
	for _, pod := range mine {
		switch {
		case tracked(pod):
		case pod.Status.Phase == corev1.PodSucceeded:
			succeeded = append(succeeded, pod)
		case pod.Status.Phase == corev1.PodFailed:
			failed = append(failed, pod)
		}
	}
	m.backoff = backoff{}.after(succeeded, failed)
	t.memories[job.UID] = m
	return m.backoff
}

func (t *term) remember(uid types.UID, b backoff) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.memories[uid]
	m.backoff = b
	t.memories[uid] = m
}

// act carries a plan out. The status is written also when something before it failed; finalizers go
// only after it.
func (t *term) act(ctx context.Context, key runtime.Key, job *batchv1.Job, p plan) error {
	var errs []error
	errs = append(errs, t.discard(ctx, key, job, p.discard, &p.status))
	killed := t.delete(ctx, key, job, p.kill, &p.status)
	errs = append(errs, killed, t.create(ctx, key, job, p.create, &p.status))
	if ctx.Err() != nil {
		return errors.Join(errs...)
	}
	if err := t.writeStatus(ctx, key, job, p); err != nil {
		return errors.Join(append(errs, err)...)
	}
	if killed == nil { // a pod that still runs must not go uncounted
		errs = append(errs,
			pods.Parallel(len(p.release), func(i int) error { return t.release(ctx, key, p.release[i]) }))
	}
	return errors.Join(errs...)
}

func (t *term) create(
	ctx context.Context, key runtime.Key, job *batchv1.Job, list []*corev1.Pod, status *batchv1.JobStatus,
) error {
	made, err := t.control.CreateAll(ctx, key, job, len(list), func(i int) *corev1.Pod { return list[i] })
	account(status, made, nil)
	return err
}

// discard deletes pods that are not to count: they lose their finalizer first.
func (t *term) discard(
	ctx context.Context, key runtime.Key, job *batchv1.Job, list []*corev1.Pod, status *batchv1.JobStatus,
) error {
	released := make([]*corev1.Pod, len(list))
	failed := pods.Parallel(len(list), func(i int) error {
		err := t.release(ctx, key, list[i])
		if err == nil {
			released[i] = list[i]
		}
		return err
	})
	released = slices.DeleteFunc(released, func(pod *corev1.Pod) bool { return pod == nil })
	return errors.Join(failed, t.delete(ctx, key, job, released, status))
}

func (t *term) delete(
	ctx context.Context, key runtime.Key, job *batchv1.Job, list []*corev1.Pod, status *batchv1.JobStatus,
) error {
	gone, err := t.control.DeleteAll(ctx, key, job, list)
	account(status, 0, gone)
	return err
}

// release removes the tracking finalizer of a pod, which may make it disappear.
func (t *term) release(ctx context.Context, key runtime.Key, pod *corev1.Pod) error {
	now, err := untrack(ctx, t.client, pod)
	if err != nil || now == nil {
		return err
	}
	t.loop.Writes().Wrote(key, t.pods, now.ResourceVersion)
	return nil
}

// writeStatus writes the status if it has changed, and the plan's events.
func (t *term) writeStatus(ctx context.Context, key runtime.Key, job *batchv1.Job, p plan) error {
	err := runtime.WriteStatus(ctx, t.loop, key, t.jobs, job.Status, p.status, func() (*batchv1.Job, error) {
		now := job.DeepCopy()
		now.Status = p.status
		return t.client.BatchV1().Jobs(job.Namespace).UpdateStatus(ctx, now, metav1.UpdateOptions{})
	})
	if err != nil {
		return err
	}
	t.remember(job.UID, p.backoff)
	for _, e := range p.events {
		t.control.Recorder.Event(job, e.kind, e.reason, e.message)
	}
	return nil
}

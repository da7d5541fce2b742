// Package cronjob makes the Jobs of CronJobs at their times, and deletes the Jobs beyond the
// history limits.
//
// All choices are made by decide. Nothing is kept in memory: a new leader makes up for a time that
// passed without a leader, unless the starting deadline has passed.
//
// A Job of a time may be made, end and be deleted before a new leader's informer shows the status
// that records it. So a leader acts for a CronJob only after it has read it from the API server.
package cronjob

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/barque/barque/controllers/runtime"
)

var kind = batchv1.SchemeGroupVersion.WithKind("CronJob")

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// Workers is how many CronJobs are worked on at once. Default 5.
	Workers int
}

// Controller reconciles CronJobs.
type Controller struct {
	cfg   Config
	crons cache.SharedIndexInformer
	jobs  cache.SharedIndexInformer
	list  batchlisters.CronJobLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.Workers <= 0 {
		cfg.Workers = 5
	}
	batch := cfg.Informers.Batch().V1()
	c := &Controller{cfg: cfg, crons: batch.CronJobs().Informer(), jobs: batch.Jobs().Informer(),
		list: batch.CronJobs().Lister()}
	return c, runtime.EnsureControllerIndex(c.jobs)
}

// Run reconciles for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, "cronjob-controller")
	defer stop()
	t := &term{Controller: c, client: client, recorder: recorder}
	t.loop = runtime.NewLoop("cronjob", c.cfg.Workers, c.cfg.Logger, t.reconcile)
	runtime.WatchOwners[batchv1.CronJob](t.loop, c.crons, t.seen.Forget)
	runtime.WatchOwned(t.loop, c.jobs, kind, func(*batchv1.Job, bool) []runtime.Key { return nil })
	return t.loop.Run(ctx)
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client   kubernetes.Interface
	recorder record.EventRecorder
	loop     *runtime.Loop
	seen     runtime.Seen
}

// current reports whether the informer shows the last leader's state of a CronJob. It asks the API
// server until that is so, and then no more.
func (t *term) current(ctx context.Context, c *batchv1.CronJob) (bool, error) {
	if t.seen.Has(c.UID) {
		return true, nil
	}
	live, err := t.client.BatchV1().CronJobs(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading CronJob %s/%s: %w", c.Namespace, c.Name, err)
	case live.ResourceVersion != c.ResourceVersion:
		return false, nil
	}
	t.seen.Note(c.UID)
	return true, nil
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	c, err := t.list.CronJobs(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	children, _, err := runtime.Controlled[batchv1.Job](t.jobs, c.Namespace, c.UID)
	if err != nil {
		return 0, err
	}
	if behind, err := t.behind(ctx, c, children); err != nil || behind {
		return runtime.Retry, err
	}
	p := decide(c, children, time.Now())
	if p.create != nil || len(p.replace)+len(p.expired) > 0 {
		if current, err := t.current(ctx, c); err != nil || !current {
			return runtime.Retry, err
		}
	}
	err = t.act(ctx, key, c, &p)
	return p.again, errors.Join(err, t.writeStatus(ctx, key, c, p))
}

// behind reports whether the informer lacks an existing job that the status lists as active: the
// last leader may have made it a moment ago.
func (t *term) behind(ctx context.Context, c *batchv1.CronJob, children []*batchv1.Job) (bool, error) {
	shown := map[string]bool{}
	for _, j := range children {
		shown[string(j.UID)] = true
	}
	for _, ref := range c.Status.Active {
		if shown[string(ref.UID)] {
			continue
		}
		j, err := t.client.BatchV1().Jobs(c.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return false, fmt.Errorf("looking for job %s: %w", ref.Name, err)
		case j.UID == ref.UID && metav1.IsControlledBy(j, c):
			return true, nil
		}
	}
	return false, nil
}

// act carries a plan out. Jobs that it makes go into the plan's status.
func (t *term) act(ctx context.Context, key runtime.Key, c *batchv1.CronJob, p *plan) error {
	for _, e := range p.events {
		t.recorder.Event(c, e.kind, e.reason, e.message)
	}
	var errs []error
	for _, j := range p.expired {
		errs = append(errs, t.delete(ctx, key, c, j))
	}
	for _, j := range p.replace {
		if err := t.delete(ctx, key, c, j); err != nil {
			p.status.Active = append(p.status.Active, refTo(j)) // it still runs
			return errors.Join(append(errs, err)...)
		}
	}
	if p.create == nil {
		return errors.Join(errs...)
	}
	made, err := t.client.BatchV1().Jobs(c.Namespace).Create(ctx, p.create, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		made, err = t.client.BatchV1().Jobs(c.Namespace).Get(ctx, p.create.Name, metav1.GetOptions{})
		if err == nil && !metav1.IsControlledBy(made, c) {
			err = fmt.Errorf("the name is taken by a job that is not this cron job's")
		}
		if err == nil { // ours, from a moment ago
			t.loop.Writes().Wrote(key, t.jobs, made.ResourceVersion)
			return errors.Join(errs...)
		}
	}
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case err != nil:
		if ctx.Err() == nil {
			t.recorder.Eventf(c, corev1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
		}
		return errors.Join(append(errs, fmt.Errorf("creating job %s: %w", p.create.Name, err))...)
	}
	t.loop.Writes().Wrote(key, t.jobs, made.ResourceVersion)
	t.recorder.Eventf(c, corev1.EventTypeNormal, "SuccessfulCreate", "Created job %v", made.Name)
	p.status.Active = append(p.status.Active, refTo(made))
	p.status.LastScheduleTime = &metav1.Time{Time: p.due}
	return errors.Join(errs...)
}

// delete deletes a job and its pods.
func (t *term) delete(ctx context.Context, key runtime.Key, c *batchv1.CronJob, j *batchv1.Job) error {
	background := metav1.DeletePropagationBackground
	err := t.client.BatchV1().Jobs(j.Namespace).Delete(ctx, j.Name, metav1.DeleteOptions{
		PropagationPolicy: &background, Preconditions: metav1.NewUIDPreconditions(string(j.UID))})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // it is gone, or another job has its name
	case err != nil:
		if ctx.Err() == nil {
			t.recorder.Eventf(c, corev1.EventTypeWarning, "FailedDelete", "Deleted job: %v", err)
		}
		return fmt.Errorf("deleting job %s: %w", j.Name, err)
	}
	t.loop.Writes().Deleted(key, t.jobs, runtime.KeyOf(j), j.UID)
	t.recorder.Eventf(c, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted job %v", j.Name)
	return nil
}

func (t *term) writeStatus(ctx context.Context, key runtime.Key, c *batchv1.CronJob, p plan) error {
	return runtime.WriteStatus(ctx, t.loop, key, t.crons, c.Status, p.status, func() (*batchv1.CronJob, error) {
		now := c.DeepCopy()
		now.Status = p.status
		return t.client.BatchV1().CronJobs(c.Namespace).UpdateStatus(ctx, now, metav1.UpdateOptions{})
	})
}

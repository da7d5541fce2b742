// Package ttlafterfinished deletes finished Jobs when the time that they are to be kept has passed.
package ttlafterfinished

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/jobs"
	"github.com/barque/barque/controllers/runtime"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
}

// Controller deletes finished Jobs.
type Controller struct {
	cfg  Config
	jobs cache.SharedIndexInformer
	list batchlisters.JobLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	jobs := cfg.Informers.Batch().V1().Jobs()
	return &Controller{cfg: cfg, jobs: jobs.Informer(), list: jobs.Lister()}, nil
}

// Run deletes for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	t := &term{Controller: c, client: client}
	loop := runtime.NewLoop("ttlafterfinished", 2, c.cfg.Logger, t.reconcile)
	runtime.Watch(loop, c.jobs, func(_, now *batchv1.Job) []runtime.Key {
		if now == nil {
			return nil
		}
		if left(now, time.Now()) < 0 {
			return nil
		}
		return []runtime.Key{runtime.KeyOf(now)}
	})
	return loop.Run(ctx)
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client kubernetes.Interface
}

// left returns how long a job is kept, 0 when it must be deleted. It is negative when the
// controller must leave the job alone: it is terminating, unfinished, or kept for ever.
func left(job *batchv1.Job, now time.Time) time.Duration {
	how, at := jobs.Finished(job)
	if how == "" || job.DeletionTimestamp != nil || job.Spec.TTLSecondsAfterFinished == nil {
		return -1
	}
	return max(0, at.Add(time.Duration(*job.Spec.TTLSecondsAfterFinished)*time.Second).Sub(now))
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	job, err := t.list.Jobs(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if wait := left(job, time.Now()); wait != 0 {
		return max(wait, 0), nil
	}
	// The time may have been raised a moment ago: the precondition on the version finds that.
	foreground := metav1.DeletePropagationForeground
	err = t.client.BatchV1().Jobs(key.Namespace).Delete(ctx, key.Name, metav1.DeleteOptions{
		PropagationPolicy: &foreground,
		Preconditions:     &metav1.Preconditions{UID: &job.UID, ResourceVersion: &job.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("deleting Job %s, whose time has passed: %w", key, err)
	}
	return 0, nil
}

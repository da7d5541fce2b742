package pods

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/barque/barque/controllers/runtime"
)

// Control creates and deletes pods for a controller and writes events of their owner. It records
// the writes, so that the owner is not reconciled before the informer shows them.
type Control struct {
	Client   kubernetes.Interface
	Recorder record.EventRecorder
	Loop     *runtime.Loop
	Informer cache.SharedIndexInformer // of pods
}

// CreateAll makes n pods for owner, with a slow start, and returns how many were made. That the
// namespace is being deleted is no error: it takes the owner with it.
func (c Control) CreateAll(
	ctx context.Context, key runtime.Key, owner kruntime.Object, n int, pod func(i int) *corev1.Pod,
) (made int, err error) {
	var done atomic.Int32
	err = SlowStart(n, func(i int) error {
		now, err := c.Create(ctx, owner, pod(i))
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		if err != nil {
			return err
		}
		c.Loop.Writes().Wrote(key, c.Informer, now.ResourceVersion)
		done.Add(1)
		return nil
	})
	return int(done.Load()), err
}

// DeleteAll asks for the deletion of pods of owner, and returns those for which that went well.
func (c Control) DeleteAll(
	ctx context.Context, key runtime.Key, owner kruntime.Object, list []*corev1.Pod,
) (gone []*corev1.Pod, err error) {
	asked := make([]bool, len(list))
	err = Parallel(len(list), func(i int) error {
		pod := list[i]
		if err := c.Delete(ctx, owner, pod); err != nil {
			return err
		}
		c.Loop.Writes().Deleted(key, c.Informer, runtime.KeyOf(pod), pod.UID)
		asked[i] = true
		return nil
	})
	for i, pod := range list {
		if asked[i] {
			gone = append(gone, pod)
		}
	}
	return gone, err
}

// Create makes one pod for owner.
func (c Control) Create(ctx context.Context, owner kruntime.Object, pod *corev1.Pod) (*corev1.Pod, error) {
	made, err := c.Client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		// A terminating namespace refuses every creation, which is not worth an event.
		if ctx.Err() == nil && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			c.Recorder.Eventf(owner, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		}
		return nil, err
	}
	c.Recorder.Eventf(owner, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", made.Name)
	return made, nil
}

// Delete asks for the graceful deletion of one pod of owner. That it is gone already is no error.
func (c Control) Delete(ctx context.Context, owner kruntime.Object, pod *corev1.Pod) error {
	err := c.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	switch {
	case err == nil:
		c.Recorder.Eventf(owner, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", pod.Name)
		return nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // it is gone, or another pod has its name
	}
	if ctx.Err() == nil {
		c.Recorder.Eventf(owner, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
	}
	return err
}

// SlowStart calls do for 0 … n-1, in batches that start with one and double after each success. So
// a permanent failure (a quota, an admission rule) happens once and not n times. It returns the
// errors of the first failed batch.
func SlowStart(n int, do func(i int) error) error {
	for first, batch := 0, 1; first < n; batch *= 2 {
		batch = min(batch, n-first)
		if err := Parallel(batch, func(i int) error { return do(first + i) }); err != nil {
			return err
		}
		first += batch
	}
	return nil
}

// Parallel calls do for 0 … n-1, at most 16 at a time, and joins the errors.
func Parallel(n int, do func(i int) error) error {
	errs := make([]error, n)
	slots := make(chan struct{}, 16)
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = do(i)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

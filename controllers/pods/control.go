package pods

import (
	"context"
	"errors"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
)

// Control creates and deletes pods for a controller and tells their owner's events about it.
type Control struct {
	Client   kubernetes.Interface
	Recorder record.EventRecorder
}

// Create makes one pod for owner.
func (c Control) Create(ctx context.Context, owner runtime.Object, pod *corev1.Pod) (*corev1.Pod, error) {
	made, err := c.Client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		// A namespace on its way out refuses every creation: that is no news to anybody.
		if ctx.Err() == nil && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			c.Recorder.Eventf(owner, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		}
		return nil, err
	}
	c.Recorder.Eventf(owner, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", made.Name)
	return made, nil
}

// Delete asks for the graceful deletion of one pod of owner. That it is gone already is no error.
func (c Control) Delete(ctx context.Context, owner runtime.Object, pod *corev1.Pod) error {
	err := c.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
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

// SlowStart calls do n times, in batches that start with one and double while all goes well, so
// that what is bound to fail (a quota, an admission rule) fails once and not n times. It returns
// the errors of the first batch that had any.
func SlowStart(n int, do func() error) error {
	for batch := 1; n > 0; batch *= 2 {
		batch = min(batch, n)
		if err := Parallel(batch, func(int) error { return do() }); err != nil {
			return err
		}
		n -= batch
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

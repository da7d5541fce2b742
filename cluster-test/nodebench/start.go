package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/cluster-test/figure"
)

const (
	namespace = metav1.NamespaceDefault
	label     = "app=nodebench"
	image     = "barque.local/hello:1" // of every dev cluster
)

// roundsOf is how many rounds of so many pods there are: more of the small ones, so that each
// number has some hundred pods, and three at least.
func roundsOf(atOnce, most int) int { return min(most, max(3, 100/atOnce)) }

// startPods measures how long pods take from their creation until they are Running, and the cost
// of a pod from its creation until it is gone. A first pod, which finds everything cold, does
// not count.
func startPods(ctx context.Context, b *bench) ([]figure.Figure, error) {
	if err := pause(ctx, b.settle); err != nil {
		return nil, err
	}
	if _, err := b.round(ctx, 1); err != nil {
		return nil, fmt.Errorf("the first pod: %w", err)
	}
	before, err := b.usage()
	if err != nil {
		return nil, err
	}
	var figures []figure.Figure
	counted := 0
	for _, n := range b.atOnce {
		var took []time.Duration
		for i := range roundsOf(n, b.rounds) {
			round, err := b.round(ctx, n)
			if err != nil {
				return figures, fmt.Errorf("%d at once, round %d: %w", n, i+1, err)
			}
			took = append(took, round...)
		}
		counted += len(took)
		more := figure.Percentiles(fmt.Sprintf("%d at once: created until Running", n), "s", took)
		progress("%d at once, %d pods: Running after %s s, p99 %s s", n, len(took), more[0], more[1])
		figures = append(figures, more...)
	}
	after, err := b.usage()
	if err != nil {
		return figures, err
	}
	return append(figures,
		after.since(before, "CPU time for a pod, from its creation until it is gone: ", "ms",
			1000/float64(counted))...), nil
}

// round creates pods at once, and deletes them when all are Running.
func (b *bench) round(ctx context.Context, n int) ([]time.Duration, error) {
	took, err := b.create(ctx, n)
	if err != nil {
		return nil, err
	}
	return took, b.clear(ctx)
}

// create creates pods at once, and returns how long each took until it was seen Running.
func (b *bench) create(ctx context.Context, n int) (took []time.Duration, err error) {
	began := map[string]time.Time{}
	var creations errgroup.Group
	for range n {
		pod := b.pod()
		began[pod.Name] = time.Now()
		creations.Go(func() error {
			tries := 0
			return b.until(ctx, func(ctx context.Context) error {
				tries++
				_, err := b.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
				if tries > 1 && apierrors.IsAlreadyExists(err) { // the answer to an earlier try was lost
					err = nil
				}
				return err
			})
		})
	}
	if err := creations.Wait(); err != nil {
		return nil, fmt.Errorf("create a pod: %w", err)
	}
	var failed error
	err = b.until(ctx, func(context.Context) error {
		if took, err = b.running.since(began); errors.Is(err, errFailed) {
			failed = err // it will not run, however long one waits
			return nil
		}
		return err
	})
	return took, errors.Join(failed, err)
}

// pod is the next one. It has its node from the beginning: no scheduler is measured.
func (b *bench) pod() *corev1.Pod {
	b.created++
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%04d", b.created),
			Labels: map[string]string{"app": "nodebench"}},
		Spec: corev1.PodSpec{NodeName: b.node, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "hello", Image: image}}},
	}
}

// clear deletes all pods, and waits until the node has ended them.
func (b *bench) clear(ctx context.Context) error {
	pods, ours := b.client.CoreV1().Pods(namespace), metav1.ListOptions{LabelSelector: label}
	if err := b.until(ctx,
		func(
			ctx context.Context,
		) error {
			return pods.DeleteCollection(ctx, metav1.DeleteOptions{}, ours)
		}); err != nil {
		return err
	}
	return b.until(ctx, func(ctx context.Context) error {
		left, err := pods.List(ctx, ours)
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%d pods are left", len(left.Items))
		}
		return err
	})
}

// errFailed is why pods have not started, and will not.
var errFailed = errors.New("a pod has ended")

// sightings are when pods were first seen Running, by their names.
type sightings struct {
	mu     sync.Mutex
	at     map[string]time.Time
	failed error // why a pod will never run
}

// watch fills sightings as long as the context lives.
func (s *sightings) watch(ctx context.Context, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = label }))
	informer := factory.Core().V1().Pods().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { s.see(obj, time.Now()) },
		UpdateFunc: func(_, obj any) { s.see(obj, time.Now()) },
	})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return ctx.Err()
}

func (s *sightings) see(obj any, now time.Time) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch pod.Status.Phase {
	case corev1.PodRunning:
		if s.at[pod.Name].IsZero() {
			s.at[pod.Name] = now
		}
	case corev1.PodFailed, corev1.PodSucceeded:
		if pod.DeletionTimestamp == nil && s.failed == nil {
			s.failed = fmt.Errorf("%w: pod %s is %s: %s %s", errFailed, pod.Name, pod.Status.Phase, pod.Status.Reason,
				pod.Status.Message)
		}
	}
}

// since returns how long each pod took until it was seen; an error as long as some were not.
func (s *sightings) since(began map[string]time.Time) (took []time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, at := range began {
		if seen := s.at[name]; !seen.IsZero() {
			took = append(took, seen.Sub(at))
		}
	}
	if len(took) < len(began) {
		err = errors.Join(fmt.Errorf("%d of %d pods run", len(took), len(began)), s.failed)
	}
	return took, err
}

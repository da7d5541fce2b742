package apiobjects

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// demand is an informer that runs while some pod of the node needs it: most nodes need none.
type demand struct {
	start func() (cache.Store, cache.Controller)

	ctx     context.Context
	stop    context.CancelCauseFunc
	running sync.WaitGroup

	mu   sync.Mutex
	pods map[types.UID]bool
	live *lister
}

// lister is an informer that runs.
type lister struct {
	cache.Store
	synced cache.DoneChecker
	stop   context.CancelCauseFunc
}

// newDemand returns a demand that makes its informer by start.
func newDemand(start func() (cache.Store, cache.Controller)) *demand {
	ctx, stop := context.WithCancelCause(context.Background())
	return &demand{start: start, ctx: ctx, stop: stop, pods: map[types.UID]bool{}}
}

// need returns the informer for a pod, and waits for a while until it has the existing objects.
func (d *demand) need(ctx context.Context, pod *v1.Pod) (*lister, error) {
	l := d.join(pod.UID)
	ctx, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	select {
	case <-l.synced.Done():
		return l, nil
	case <-ctx.Done():
		return nil, apierrors.NewTimeoutError("the API server has not answered yet", 1)
	}
}

func (d *demand) join(uid types.UID) *lister {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pods[uid] = true
	if d.live == nil {
		ctx, stop := context.WithCancelCause(d.ctx)
		store, controller := d.start()
		d.live = &lister{store, controller.HasSyncedChecker(), stop}
		d.running.Go(func() { controller.RunWithContext(ctx) }) // ends with forget or close
	}
	return d.live
}

// caughtUp reports whether the informer has the existing objects. Before that, a pod that waits for
// it will see the news.
func (d *demand) caughtUp() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.live != nil && cache.IsDone(d.live.synced)
}

// forget drops a pod that no longer needs the informer.
func (d *demand) forget(uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if delete(d.pods, uid); len(d.pods) == 0 && d.live != nil {
		d.live.stop(errStopped)
		d.live = nil
	}
}

// close ends the informer and waits for it.
func (d *demand) close() {
	d.stop(errStopped)
	d.running.Wait()
}

// sooner is the earlier of two times, of which zero is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

package runtime

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Key names the object that a reconcile is about. Namespace is empty for cluster-wide kinds.
type Key = cache.ObjectName

// KeyOf returns the key of an object.
func KeyOf(obj interface {
	GetNamespace() string
	GetName() string
}) Key {
	return Key{Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

// How long a key waits at least and at most before it is looked at again while the informers have
// not caught up with its last writes. The event that they wait for wakes it sooner.
const (
	minSettle = 20 * time.Millisecond
	maxSettle = time.Second
)

// Loop is the skeleton of a level-based controller for one term: informer events become keys, keys
// are rate limited and reconciled one at a time each. Make one per term, add watches, call Run.
type Loop struct {
	name      string
	log       *slog.Logger
	workers   int
	reconcile func(ctx context.Context, key Key) (again time.Duration, err error)

	queue   workqueue.TypedRateLimitingInterface[Key]
	backoff *backoff // of the queue
	pace    *pace
	writes  *Writes
	watches []func() (reg cache.ResourceEventHandlerRegistration, detach func(), err error)
}

// NewLoop makes a loop. reconcile compares desired with observed for one key and acts; it returns
// after how long it wants to see the key again although nothing happens (0: not at all). After an
// error or Retry the key comes back with exponential back-off from 5 ms to 1 min, and so it does
// when the time asked for is below 100 ms. No key is reconciled more often than 50 times a second
// for long.
func NewLoop(
	name string, workers int, log *slog.Logger, reconcile func(ctx context.Context, key Key) (time.Duration, error),
) *Loop {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	backoff := newBackoff()
	return &Loop{
		name: name, log: log.With("controller", name), workers: max(1, workers), reconcile: reconcile,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(backoff,
			workqueue.TypedRateLimitingQueueConfig[Key]{Name: name}),
		backoff: backoff, pace: newPace(), writes: NewWrites(),
	}
}

// Writes is where reconcile notes what it wrote.
func (l *Loop) Writes() *Writes { return l.writes }

// Add puts a key into the queue.
func (l *Loop) Add(keys ...Key) {
	for _, k := range keys {
		l.queue.Add(k)
	}
}

// Watch calls keys for every change of an object that the informer holds, with old nil for an
// object that is new to this loop and now nil for one that is gone, and queues what it returns.
// Every object is new once at the start of Run.
func Watch[T any](l *Loop, informer cache.SharedIndexInformer, keys func(old, now *T) []Key) {
	handle := cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if now, ok := obj.(*T); ok {
				l.Add(keys(nil, now)...)
			}
		},
		UpdateFunc: func(was, is any) {
			old, _ := was.(*T)
			if now, ok := is.(*T); ok {
				l.Add(keys(old, now)...)
			}
		},
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if old, ok := obj.(*T); ok {
				l.Add(keys(old, nil)...)
			}
		},
	}
	l.watches = append(l.watches,
		func() (cache.ResourceEventHandlerRegistration, func(), error) { return attach(informer, handle) })
}

// Itself queues the object that has changed.
func Itself[T any, P interface {
	*T
	GetNamespace() string
	GetName() string
}](old, now P) []Key {
	if now == nil {
		now = old
	}
	return []Key{KeyOf(now)}
}

// attach registers a handler and returns the function that removes it and waits until it has run
// for the last time.
func attach(
	informer cache.SharedIndexInformer, handler cache.ResourceEventHandler,
) (reg cache.ResourceEventHandlerRegistration, detach func(), err error) {
	if reg, err = informer.AddEventHandler(handler); err != nil {
		return nil, nil, fmt.Errorf("watching through an informer: %w", err)
	}
	return reg, func() { _ = cache.ShutDownEventHandler(informer, reg) }, nil // fails only for another informer's
}

// Run works until ctx ends; then it removes the handlers, waits for the workers and returns nil.
// It may be called once.
func (l *Loop) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	defer workers.Wait()
	defer l.queue.ShutDown()
	var synced []<-chan struct{}
	for _, watch := range l.watches {
		reg, detach, err := watch()
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		defer detach()
		synced = append(synced, reg.HasSyncedChecker().Done())
	}
	// A loop that watches nothing does not know when what feeds it is there.
	if len(synced) > 0 {
		workers.Go(func() { // ends with ctx at the latest
			if all(ctx, synced) {
				Started(ctx)
			}
		})
	}
	for range l.workers {
		workers.Go(func() {
			for l.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	return nil
}

// all waits until all channels are closed; it returns false when ctx ends before.
func all(ctx context.Context, channels []<-chan struct{}) bool {
	for _, c := range channels {
		select {
		case <-c:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (l *Loop) next(ctx context.Context) bool {
	key, shutdown := l.queue.Get()
	if shutdown || ctx.Err() != nil {
		return false
	}
	defer l.queue.Done(key)
	if wait, settled := l.writes.settled(key); !settled {
		l.queue.AddAfter(key, wait)
		return true
	}
	if wait := l.pace.take(key, time.Now()); wait > 0 {
		l.queue.AddAfter(key, wait)
		return true
	}
	again, err := l.safely(ctx, key)
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		level := slog.LevelWarn
		if apierrors.IsConflict(err) {
			level = slog.LevelDebug // somebody else wrote first: the next look decides
		}
		l.log.Log(ctx, level, "reconcile failed: trying again", "key", key, "err", err, "failures",
			l.queue.NumRequeues(key)+1)
		l.queue.AddRateLimited(key)
		return true
	case again > 0 && again < soonest:
		l.queue.AddAfter(key, max(again, l.backoff.When(key)))
		return true
	case again > 0:
		l.queue.AddAfter(key, again)
	}
	l.queue.Forget(key)
	return true
}

// safely keeps one strange object from taking the server down with its controller.
func (l *Loop) safely(ctx context.Context, key Key) (again time.Duration, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return l.reconcile(ctx, key)
}

package audit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
	"k8s.io/client-go/util/flowcontrol"
)

// target is where a sink's events end: a file, or a webhook. send returns when they are there, or
// are lost. Its context ends when a flush has taken too long.
type target interface {
	send(ctx context.Context, events []*auditinternal.Event) error
}

const (
	// maxQueueBytes bounds the memory of a queue, beside its bound in events: one event with its
	// bodies may have megabytes.
	maxQueueBytes = 64 << 20
	// eventBytes is about the memory of an event without its texts and bodies.
	eventBytes = 2 << 10
	// flushTimeout bounds the flush at a stop.
	flushTimeout = 5 * time.Second
	// leaveTimeout is the time in which a target must end after that.
	leaveTimeout = time.Second
)

// Reasons for the loss of events that have not reached the target.
var (
	errQueueFull = errors.New("the queue is full, because the target takes events too slowly or not at all")
	errStopped   = errors.New("the server has stopped before they were sent")
)

// queue takes events without waiting, and sends them to the target in batches. An event that finds
// it full is lost.
type queue struct {
	target   target
	config   buffered.BatchConfig
	maxBytes int
	senders  int // how many batches may be on their way at once
	throttle flowcontrol.RateLimiter
	lost     func(err error, events ...*auditinternal.Event)

	mu      sync.Mutex
	waiting []*auditinternal.Event
	bytes   int // of those that wait or are on their way
	stopped bool
	news    chan struct{} // holds one: an event was added, or the queue was stopped
}

func newQueue(to target, config buffered.BatchConfig, senders int, lost func(error, ...*auditinternal.Event)) *queue {
	q := &queue{target: to, config: config, maxBytes: maxQueueBytes, senders: senders, lost: lost,
		news: make(chan struct{}, 1)}
	if config.ThrottleEnable {
		q.throttle = flowcontrol.NewTokenBucketRateLimiter(config.ThrottleQPS, config.ThrottleBurst)
	}
	return q
}

// add implements sink. The caller reuses the events.
func (q *queue) add(events ...*auditinternal.Event) bool {
	for i, e := range events {
		if err := q.put(e); err != nil {
			q.lost(err, events[i:]...)
			return true
		}
	}
	return true
}

func (q *queue) put(e *auditinternal.Event) error {
	size := sizeOf(e)
	q.mu.Lock()
	err := q.fits(size)
	q.mu.Unlock()
	if err != nil {
		return err
	}
	e = e.DeepCopy()
	q.mu.Lock()
	if err = q.fits(size); err == nil {
		q.bytes += size
		q.waiting = append(q.waiting, e)
	}
	q.mu.Unlock()
	q.wake()
	return err
}

// fits returns the reason why an event of that size is lost, or nil. The caller holds mu.
func (q *queue) fits(size int) error {
	switch {
	case q.stopped:
		return errStopped
	case len(q.waiting) >= q.config.BufferSize || q.bytes+size > q.maxBytes:
		return errQueueFull
	}
	return nil
}

func (q *queue) wake() {
	select {
	case q.news <- struct{}{}:
	default:
	}
}

// run sends until ctx ends, and then the remaining events, within flushTimeout.
func (q *queue) run(ctx context.Context) {
	flush, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(flushTimeout, func() { cancel(errStopped) })
		q.wake()
	})()
	turns := make(chan struct{}, q.senders)
	var sending sync.WaitGroup
	for {
		batch := q.collect(ctx, flush)
		if len(batch) == 0 {
			break
		}
		if q.throttle != nil && ctx.Err() == nil {
			// A stop ends the throttling, and the batch is sent.
			_ = q.throttle.Wait(ctx)
		}
		select {
		case turns <- struct{}{}:
		case <-flush.Done():
			q.sent(errStopped, batch)
			continue
		}
		sending.Go(func() {
			defer func() { <-turns }()
			q.sent(q.sendSafely(flush, batch), batch)
		})
	}
	done := make(chan struct{})
	go func() { // ends with the last sender, whose context has an end
		sending.Wait()
		close(done)
	}()
	select {
	case <-done:
		return
	case <-flush.Done():
	}
	left := time.NewTimer(leaveTimeout)
	defer left.Stop()
	select {
	case <-done:
	case <-left.C: // a target that ignores its context, such as a disk that hangs, is left behind
	}
}

// sendSafely makes an error of a panic: no event may end the process.
func (q *queue) sendSafely(ctx context.Context, batch []*auditinternal.Event) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return q.target.send(ctx, batch)
}

// sent ends the way of a batch.
func (q *queue) sent(err error, batch []*auditinternal.Event) {
	size := 0
	for _, e := range batch {
		size += sizeOf(e)
	}
	q.mu.Lock()
	q.bytes -= size
	q.mu.Unlock()
	if err != nil {
		q.lost(err, batch...)
	}
}

// collect waits for a batch. After ctx has ended it takes the waiting events, and then nothing: no
// event is added any more.
func (q *queue) collect(ctx, flush context.Context) []*auditinternal.Event {
	var full <-chan time.Time
	if q.config.MaxBatchSize > 1 {
		timer := time.NewTimer(q.config.MaxBatchWait)
		defer timer.Stop()
		full = timer.C
	}
	for late := false; ; {
		q.mu.Lock()
		stopping := ctx.Err() != nil
		q.stopped = q.stopped || stopping && len(q.waiting) == 0 || flush.Err() != nil
		n := min(len(q.waiting), q.config.MaxBatchSize)
		if n == q.config.MaxBatchSize || n > 0 && (late || stopping) || q.stopped {
			batch := q.waiting[:n:n]
			q.waiting = q.waiting[n:]
			if len(q.waiting) == 0 {
				q.waiting = nil // so that the array of a full queue is freed
			}
			q.mu.Unlock()
			return batch
		}
		q.mu.Unlock()
		select {
		case <-q.news:
		case <-ctx.Done():
		case <-full:
			late, full = true, nil
		}
	}
}

// Package pace runs level-based work: at each trigger the work looks at the whole state and
// corrects it. The first trigger is answered at once, a burst of them by few runs, and a failure is
// retried with growing pauses. The package does not know the work.
package pace

import (
	"context"
	"time"
)

// Trigger asks for work. Firing never blocks; many firings before the work
// starts are one. The zero value is not usable.
type Trigger struct{ c chan struct{} }

// NewTrigger returns a trigger that has not fired.
func NewTrigger() Trigger { return Trigger{c: make(chan struct{}, 1)} }

// Fire asks for a run that starts after this call.
func (t Trigger) Fire() {
	select {
	case t.c <- struct{}{}:
	default:
	}
}

// drain forgets a firing that the run about to start answers.
func (t Trigger) drain() {
	select {
	case <-t.c:
	default:
	}
}

// Pace limits the frequency of work in both directions.
type Pace struct {
	// MinInterval lies between the starts of two runs.
	MinInterval time.Duration
	// Every is the longest time without a run; zero for no limit.
	Every time.Duration
	// RetryMin and RetryMax bound the pause after a failure; it doubles each time.
	// The trigger ends it early, but not before RetryMin.
	RetryMin, RetryMax time.Duration
}

// Run does the work once and then whenever the trigger fires, until ctx ends. failed is called with
// each error. Run owns no goroutine.
func Run(ctx context.Context, pace Pace, trigger Trigger, work func(context.Context) error, failed func(error)) {
	retry := pace.RetryMin
	for {
		trigger.drain()
		started := time.Now()
		err := work(ctx)
		if ctx.Err() != nil {
			return
		}
		pause := pace.MinInterval - time.Since(started)
		if err != nil {
			failed(err)
			// A change may resolve the failure, so it is answered soon; but a repeated failure must
			// not spin.
			pause = max(pause, pace.RetryMin)
			if !sleep(ctx, pause) || !wait(ctx, max(retry-pause, time.Nanosecond), trigger) {
				return
			}
			retry = min(2*retry, pace.RetryMax)
			continue
		}
		retry = pace.RetryMin
		if !sleep(ctx, pause) || !wait(ctx, pace.Every, trigger) {
			return
		}
	}
}

// sleep waits; false when ctx ended.
func sleep(ctx context.Context, pause time.Duration) bool {
	if pause <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// wait returns when the trigger has fired or the time is over; false when ctx ended.
func wait(ctx context.Context, limit time.Duration, trigger Trigger) bool {
	var over <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-trigger.c:
	case <-over:
	}
	return true
}

// EndOr returns err unless ctx has ended: at the end, a dependency may have ended first, and that
// is no error.
func EndOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

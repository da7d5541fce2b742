package verify

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// roundTime is the least time for which calls are gathered before they are judged. The search takes
// memory with the square of the number of calls, so that two rounds bound the memory of any run. A
// round also gathers while the round before it ends, which usually takes a moment.
//
// While a server is away this takes settleTime, and at most twice that if a late server's watcher
// is awaited. The search adds at most settleTime, and the removal of objects its own time.
const roundTime = time.Minute

// endPatience bounds the steps of an end. An interrupted run ends sooner and judges less.
func endPatience(ctx context.Context) time.Duration {
	if ctx.Err() != nil {
		return askTime
	}
	return settleTime
}

// stopper is work that Stop ends and judges. A *Workload is one, and documents the errors.
type stopper interface {
	Stop(ctx context.Context, patience time.Duration) (*Verdict, error)
}

// rounds are pieces of work, each with objects of its own. A round starts before the one before it
// ends, so that there is no pause.
type rounds struct {
	total, each time.Duration
	start       func(n int) (stopper, error)
	progress    func(format string, args ...any)
}

// run works until total is over or ctx ends. It returns the sum of all rounds' verdicts, also with
// an error. All that it started has stopped when it returns.
//
// At the end of a round there may be no leader and no answer. Then the sum names the unjudged
// servers, and the next round runs. At the end of the last round it is an error.
func (r rounds) run(ctx context.Context) (*Verdict, error) {
	orderly := context.WithoutCancel(ctx) // interrupted work ends in order
	sum := new(Verdict)
	var running stopper
	stop := func() (silent *SilentError) {
		if running == nil {
			return nil
		}
		v, err := running.Stop(orderly, endPatience(ctx))
		running = nil
		sum.add(v)
		if n := len(v.Violations); n > 0 { // at once: later rounds may take long, or be cut short
			r.progress("NOT KEPT: %s (%d found in this round)", v.Violations[0], n)
		}
		if err != nil && !errors.As(err, &silent) {
			r.progress("%v; they go with the namespace", err)
		}
		return silent
	}
	end := time.Now().Add(r.total)
	for n := 0; n == 0 || time.Now().Before(end) && ctx.Err() == nil; n++ {
		next, err := r.start(n)
		if err != nil {
			if silent := stop(); silent != nil {
				err = errors.Join(err, silent)
			}
			return sum, err
		}
		if silent := stop(); silent != nil {
			r.progress("%v; going on", silent)
		}
		running = next
		if n > 0 {
			r.progress("%v to go; so far %s, broken promises: %d", time.Until(end).Round(time.Second), sum,
				len(sum.Violations))
		}
		pause(ctx, min(r.each, time.Until(end)))
	}
	if silent := stop(); silent != nil {
		return sum, fmt.Errorf("end the work: %w", silent)
	}
	return sum, nil
}

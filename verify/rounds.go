package verify

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// roundTime is for how long calls are gathered at least before they are judged. Judging takes memory with the square of
// that; so work of any length takes as much as two rounds. A round that runs while the one before it ends gathers for as
// long as that takes, too: a moment as a rule, and at most twice settleTime (until all have answered, and for the search)
// and the time in which its objects are removed.
const roundTime = time.Minute

// stopper is work that goes on until it is stopped, and is judged then. A *Workload is one.
type stopper interface {
	Stop(ctx context.Context, patience time.Duration) (*Verdict, error)
}

// rounds are one piece of work after the other, each with objects of its own, and without a pause: the next one has begun
// before the last one ends.
type rounds struct {
	total, each time.Duration
	start       func(n int) (stopper, error)
	progress    func(format string, args ...any)
}

// run works until all of the time is over, or ctx ends, and returns what was found in all rounds; with an error, what was
// found until then. Everything that was started is stopped when it returns.
func (r rounds) run(ctx context.Context) (*Verdict, error) {
	ending := context.WithoutCancel(ctx) // what runs is ended in order
	sum := new(Verdict)
	var running stopper
	stop := func() error {
		if running == nil {
			return nil
		}
		v, err := running.Stop(ending, settleTime)
		running = nil
		if v != nil {
			sum.add(v)
		}
		return err
	}
	end := time.Now().Add(r.total)
	for n := 0; n == 0 || time.Now().Before(end) && ctx.Err() == nil; n++ {
		next, err := r.start(n)
		if err != nil {
			return sum, errors.Join(err, stop())
		}
		err = stop()
		running = next
		if err != nil {
			return sum, errors.Join(err, stop())
		}
		if n > 0 {
			r.progress("%v to go; so far %s", time.Until(end).Round(time.Second), sum)
		}
		pause(ctx, min(r.each, time.Until(end)))
	}
	if err := stop(); err != nil {
		return sum, fmt.Errorf("end the work: %w", err)
	}
	return sum, nil
}

package verify

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// roundTime is for how long calls are gathered at least before they are judged. Judging takes
// memory with the square of that; so work of any length takes as much as two rounds. A round that
// runs while the one before it ends gathers for as long as that takes, too: a moment as a rule.
// Where a server stays away it is settleTime, until that is given up, and at most twice that where
// it comes back so late that its watcher must be waited for; then settleTime for the search, and
// the time in which its objects are removed.
const roundTime = time.Minute

// endPatience is how long what ends may take. Of what was interrupted less can be judged: it ends
// in order, and soon.
func endPatience(ctx context.Context) time.Duration {
	if ctx.Err() != nil {
		return askTime
	}
	return settleTime
}

// stopper is work that goes on until it is stopped, and is judged then, as far as that goes. A
// *Workload is one; its errors are told there.
type stopper interface {
	Stop(ctx context.Context, patience time.Duration) (*Verdict, error)
}

// rounds are one piece of work after the other, each with objects of its own, and without a pause:
// the next one has begun before the last one ends.
type rounds struct {
	total, each time.Duration
	start       func(n int) (stopper, error)
	progress    func(format string, args ...any)
}

// run works until all of the time is over, or ctx ends, and returns what was found in all rounds;
// with an error, what was found until then. Everything that was started is stopped when it returns.
//
// That no server answers when a round is to end, as none does while there is no leader, is not the
// end of the others: the sum has what could not be judged for it. At the end of the last round it
// is an error.
func (r rounds) run(ctx context.Context) (*Verdict, error) {
	orderly := context.WithoutCancel(ctx) // what runs is ended in order
	sum := new(Verdict)
	var running stopper
	stop := func() (silent *SilentError) {
		if running == nil {
			return nil
		}
		v, err := running.Stop(orderly, endPatience(ctx))
		running = nil
		sum.add(v)
		if n := len(v.Violations); n > 0 { // now: what comes may take long, or end early
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
			r.progress("%v to go; so far %s, broken promises: %d", time.Until(end).Round(time.Second), sum, len(sum.Violations))
		}
		pause(ctx, min(r.each, time.Until(end)))
	}
	if silent := stop(); silent != nil {
		return sum, fmt.Errorf("end the work: %w", silent)
	}
	return sum, nil
}

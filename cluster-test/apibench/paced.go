package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/barque/barque/cluster-test/figure"
)

// writes are those that were offered for a while at a steady rate.
type writes struct {
	offered int
	took    []time.Duration // from the moment at which each was due: waiting for a writer counts
	lasted  time.Duration
	failures
}

// failures are counted by the kind of the answer.
type failures struct{ server, others int }

// note counts an error: 5xx apart from the rest, which has refusals of other codes and lost
// connections.
func (f *failures) note(err error) {
	var r refusal
	if errors.As(err, &r) && r.code >= http.StatusInternalServerError {
		f.server++
	} else {
		f.others++
	}
}

func (f failures) figures(what string) []figure.Figure {
	return []figure.Figure{
		figure.Spread(what+" that were answered with 5xx", "", float64(f.server)),
		figure.Spread(what+" that failed otherwise", "", float64(f.others)),
	}
}

// done is how many succeeded.
func (w writes) done() int { return len(w.took) - w.server - w.others }

// figures are those of the writes in one phase, such as "while nobody lists".
func (w writes) figures(when string) []figure.Figure {
	out := spreads(figure.Percentiles("a write, "+when, "ms", w.took))
	out = append(out,
		figure.Spread("writes in a second, "+when, "", float64(w.done())/w.lasted.Seconds()),
		figure.Spread(fmt.Sprintf("writes of %d that were not begun, %s", w.offered, when), "",
			float64(w.offered-len(w.took))))
	return append(out, w.failures.figures("writes, "+when+",")...)
}

// spreads shows figures that are measured again and again.
func spreads(figures []figure.Figure) []figure.Figure {
	for i := range figures {
		figures[i].Spread = true
	}
	return figures
}

// paced offers writes at a steady rate, a second, for a while. All clients write, each the next one
// that is due, and leave out those that are still to be begun in the end. write gets the number of
// the client.
func (l *load) paced(
	ctx context.Context, rate int, during time.Duration, write func(ctx context.Context, client int) error,
) (writes, error) {
	w := writes{offered: max(1, int(during.Seconds()*float64(rate)))}
	var next atomic.Int64
	var mu sync.Mutex
	var last error
	var writers sync.WaitGroup
	began := time.Now()
	for client := range mostClient {
		writers.Go(func() {
			for n := next.Add(1) - 1; n < int64(w.offered); n = next.Add(1) - 1 {
				due := began.Add(time.Duration(n) * time.Second / time.Duration(rate))
				if !sleepUntil(ctx, due) || time.Since(began) > during {
					return
				}
				err := write(ctx, client)
				took := time.Since(due)
				mu.Lock()
				if w.took = append(w.took, took); err != nil {
					w.note(err)
					last = err
				}
				mu.Unlock()
			}
		})
	}
	writers.Wait()
	if w.lasted = max(during, time.Since(began)); ctx.Err() != nil {
		return w, context.Cause(ctx)
	}
	if w.done() == 0 {
		return w, fmt.Errorf("no write succeeded: %w", last)
	}
	return w, nil
}

// sleepUntil reports whether the moment came before the context ended.
func sleepUntil(ctx context.Context, due time.Time) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Until(due)): // brief: the moment that the caller wants
		return true
	}
}

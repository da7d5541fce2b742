package balancer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// lateness is the delay of a timer that shows a pause of this process. Answers from the pause are
// still unread.
const lateness = 100 * time.Millisecond

// errNoAnswer is why a probe is given up.
var errNoAnswer = errors.New("no answer")

// isAnswer reports whether a probe that returned err was answered.
func isAnswer(err error) bool { return err == nil || errors.Is(err, ErrNotReady) }

// ask probes a server once: over the connection that lane names, and over a second one if that
// fails or is unanswered for Config.Hedge. The first answer counts, so one lost packet, or one
// hanging connection, is no silence.
//
// anew signals that another server has answered. While the probe is in doubt, that starts a last
// probe over its own connection, which has Config.Hedge for its answer. If all servers were
// unreachable together, this one may be back as well. doubt is called just before the second and
// the last probe.
//
// An overtaken probe continues for at most Config.Timeout: an answer costs the server less than an
// aborted request.
func (b *Balancer) ask(
	ctx context.Context, probes *sync.WaitGroup, server netip.AddrPort, lane int, anew <-chan struct{}, doubt func(),
) error {
	q := &question{ctx: ctx, probes: probes, came: make(chan answer, lanes),
		probe: func(ctx context.Context, lane int) error {
			return b.config.Probe(ctx, server, lane)
		}}
	due := time.Now().Add(b.config.Hedge)
	timer := time.NewTimer(b.config.Hedge)
	defer timer.Stop()
	doubted := false
	begin := func(lane int, within time.Duration) {
		doubted = true
		doubt()
		if until := time.Now().Add(within); until.After(due) {
			due = until
		}
		timer.Reset(time.Until(due))
		q.begin(lane)
	}
	second := func() { begin(1-lane, b.config.Timeout-b.config.Hedge) }
	answered := func(err error) error {
		if doubted {
			time.AfterFunc(b.config.Timeout, q.end)
		}
		return err
	}
	q.begin(lane)
	for {
		var again <-chan struct{}
		if doubted {
			again = anew
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx) // which has ended the probes
		case a := <-q.came:
			if q.take(a) {
				return answered(a.err)
			}
			if !doubted {
				second()
			} else if q.open == 0 {
				return q.failed
			}
		case <-again:
			begin(lastLane, b.config.Hedge)
		case <-timer.C:
			if !doubted {
				second()
				continue
			}
			// An answer that is there counts, however little this process was late for it.
			for len(q.came) > 0 {
				if a := <-q.came; q.take(a) {
					return answered(a.err)
				}
			}
			if time.Since(due) > lateness {
				due = time.Now().Add(b.config.Timeout - b.config.Hedge)
				timer.Reset(time.Until(due))
				continue
			}
			q.end()
			if q.failed == nil {
				q.failed = fmt.Errorf("%w within %s", errNoAnswer, b.config.Timeout)
			}
			return q.failed
		}
	}
}

// question is the probes of one question.
type question struct {
	ctx    context.Context
	probes *sync.WaitGroup
	probe  func(ctx context.Context, lane int) error
	came   chan answer
	open   int                            // probes without a result yet
	failed error                          // error of the first failed probe
	cancel [lanes]context.CancelCauseFunc // of the probes, nil if not started
}

const (
	// lanes is how many connections a server is asked over, at most.
	lanes = 3
	// lastLane is the lane of last probes. It is usually a new connection, which waits for no lost
	// packet.
	lastLane = 2
)

type answer struct {
	lane int
	err  error
}

// begin asks over a lane. The probe ends with the question, or after it.
func (q *question) begin(lane int) {
	ctx, cancel := context.WithCancelCause(q.ctx)
	q.cancel[lane] = cancel
	q.open++
	q.probes.Go(func() {
		err := q.probe(ctx, lane)
		cancel(nil)
		q.came <- answer{lane, err}
	})
}

// take stores a probe's result, and reports whether it is an answer.
func (q *question) take(a answer) bool {
	q.open--
	if isAnswer(a.err) {
		return true
	}
	if q.failed == nil {
		q.failed = a.err
	}
	return false
}

// end gives up the probes that are left. It may be called at any time after the question was
// answered.
func (q *question) end() {
	for _, cancel := range q.cancel {
		if cancel != nil {
			cancel(errNoAnswer)
		}
	}
}

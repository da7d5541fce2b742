package balancer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// lateness is by how much a question must have overslept its end to tell that this process stood
// still: what a server answered meanwhile was not read yet.
const lateness = 100 * time.Millisecond

// errNoAnswer is why a probe is given up.
var errNoAnswer = errors.New("no answer")

// isAnswer tells whether a probe that returned err was answered.
func isAnswer(err error) bool { return err == nil || errors.Is(err, ErrNotReady) }

// ask puts one question to a server: a probe over the connection that lane names, and another one
// over the other connection when that fails, or is unanswered for Config.Hedge. The first answer
// counts, so one lost packet, or one connection that hangs, is no silence. When anew brings
// something while the question is in doubt, because another server has answered, a last probe
// begins over a connection of its own, and has Config.Hedge for its answer: if all were cut off
// together, this one may be back as well. Doubt is called just before the second probe begins, and
// before the last. A probe that was outrun goes on for Config.Timeout at most, among probes: to cut
// it off costs the server more than to answer it.
func (b *Balancer) ask(ctx context.Context, probes *sync.WaitGroup, server netip.AddrPort, lane int, anew <-chan struct{}, doubt func()) error {
	q := &question{ctx: ctx, probes: probes, came: make(chan answer, lanes), probe: func(ctx context.Context, lane int) error {
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
	open   int                            // probes that brought nothing yet
	failed error                          // why the first of those failed that did
	cancel [lanes]context.CancelCauseFunc // of the probes, nil where none began
}

const (
	// lanes is how many connections a server is asked over, at most.
	lanes = 3
	// lastLane is that of last probes. It is a new connection most of the time, which waits for no
	// lost packet.
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

// take takes what a probe brought, and tells whether that is an answer.
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

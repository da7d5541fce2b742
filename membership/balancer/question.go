package balancer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// lateness is by how much a question must have overslept its end to tell that this process stood still: what a server
// answered meanwhile was not read yet.
const lateness = 100 * time.Millisecond

// errNoAnswer is why a probe is given up.
var errNoAnswer = errors.New("no answer")

// isAnswer tells whether a probe that returned err was answered.
func isAnswer(err error) bool { return err == nil || errors.Is(err, ErrNotReady) }

// ask puts one question to a server: a probe over the connection that lane names, and another one over the other
// connection when that fails, or is unanswered for Config.Hedge. The first answer counts, so one lost packet, or one
// connection that hangs, is no silence. Doubt is called when the second probe begins. A probe that was outrun goes on for
// Config.Timeout at most, among probes: to cut it off costs the server more than to answer it.
func (b *Balancer) ask(ctx context.Context, probes *sync.WaitGroup, server netip.AddrPort, lane int, doubt func()) error {
	q := &question{ctx: ctx, probes: probes, came: make(chan answer, lanes), probe: func(ctx context.Context, lane int) error {
		return b.config.Probe(ctx, server, lane)
	}}
	var failed error
	doubted := false
	rest := b.config.Timeout - b.config.Hedge
	due := time.Now().Add(b.config.Hedge)
	timer := time.NewTimer(b.config.Hedge)
	defer timer.Stop()
	wait := func() {
		due = time.Now().Add(rest)
		timer.Reset(rest)
	}
	second := func() {
		wait()
		q.begin(1 - lane)
		doubted = true
		doubt()
	}
	q.begin(lane)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx) // which has ended the probes
		case a := <-q.came:
			if isAnswer(a.err) {
				if doubted {
					time.AfterFunc(b.config.Timeout, q.end)
				}
				return a.err
			}
			if failed != nil {
				return failed
			}
			if failed = a.err; !doubted {
				second()
			}
		case <-timer.C:
			switch {
			case !doubted:
				second()
			case time.Since(due) > lateness:
				wait()
			case failed == nil:
				failed = fmt.Errorf("%w within %s", errNoAnswer, b.config.Timeout)
				fallthrough
			default:
				q.end()
				return failed
			}
		}
	}
}

// question is the probes of one question.
type question struct {
	ctx    context.Context
	probes *sync.WaitGroup
	probe  func(ctx context.Context, lane int) error
	came   chan answer
	cancel [lanes]context.CancelCauseFunc // of the probes, nil where none began
}

// lanes is how many connections a server is asked over.
const lanes = 2

type answer struct {
	lane int
	err  error
}

// begin asks over a lane. The probe ends with the question, or after it.
func (q *question) begin(lane int) {
	ctx, cancel := context.WithCancelCause(q.ctx)
	q.cancel[lane] = cancel
	q.probes.Go(func() {
		err := q.probe(ctx, lane)
		cancel(nil)
		q.came <- answer{lane, err}
	})
}

// end gives up the probes that are left. It may be called at any time after the question was answered.
func (q *question) end() {
	for _, cancel := range q.cancel {
		if cancel != nil {
			cancel(errNoAnswer)
		}
	}
}

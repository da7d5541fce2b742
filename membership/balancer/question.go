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

var (
	errNoAnswer = errors.New("no answer")
	// errOvertaken is why a probe is given up that another was faster than, though it was begun later.
	errOvertaken = errors.New("another connection was faster")
)

// isAnswer tells whether a probe that returned err was answered.
func isAnswer(err error) bool { return err == nil || errors.Is(err, ErrNotReady) }

// ask puts one question to a server: a probe over the connection that lane names, and another one over the other
// connection when that fails, or is unanswered for Config.Hedge. The first answer counts, so one lost packet, or one
// connection that hangs, is no silence. Doubt is called when the second probe begins.
func (b *Balancer) ask(ctx context.Context, server netip.AddrPort, lane int, doubt func()) error {
	q := &question{ctx: ctx, came: make(chan answer, 2), probe: func(ctx context.Context, lane int) error {
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
			return q.end(context.Cause(ctx), nil)
		case a := <-q.came:
			switch {
			case isAnswer(a.err) && a.lane == lane:
				return q.end(a.err, nil)
			case isAnswer(a.err):
				return q.end(a.err, errOvertaken)
			case failed != nil:
				return q.end(failed, nil)
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
				return q.end(failed, errNoAnswer)
			}
		}
	}
}

// question is the probes of one question.
type question struct {
	ctx    context.Context
	probe  func(ctx context.Context, lane int) error
	came   chan answer
	probes sync.WaitGroup
	cancel [lanes]context.CancelCauseFunc // of the probes, nil where none began
}

// lanes is how many connections a server is asked over.
const lanes = 2

type answer struct {
	lane int
	err  error
}

// begin asks over a lane. The probe runs until end, at most.
func (q *question) begin(lane int) {
	ctx, cancel := context.WithCancelCause(q.ctx)
	q.cancel[lane] = cancel
	q.probes.Go(func() { q.came <- answer{lane, q.probe(ctx, lane)} })
}

// end gives up the probes that are left, because of why, waits for them, and returns err.
func (q *question) end(err, why error) error {
	for _, cancel := range q.cancel {
		if cancel != nil {
			cancel(why)
		}
	}
	q.probes.Wait()
	return err
}

package readindex

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/status"
)

// rounds find the revision that the local state must reach before a read that begins now may be
// answered. One exchange serves all readers that wait when it begins.
type rounds struct {
	round func(ctx context.Context) (uint64, error)
	limit time.Duration
	kick  chan struct{} // holds a token when a read waits
	stats *status.Metrics

	mu   sync.Mutex
	next *round
}

// round is one exchange and the reads that wait for it.
type round struct {
	done     chan struct{}
	readers  int // guarded by rounds.mu until the exchange begins
	revision uint64
	err      error
}

func newRounds(limit time.Duration, stats *status.Metrics, exchange func(context.Context) (uint64, error)) *rounds {
	return &rounds{round: exchange, limit: limit, kick: make(chan struct{}, 1), stats: stats}
}

// run makes one exchange after the other while readers wait, until ctx ends.
func (r *rounds) run(ctx context.Context) {
	for {
		select {
		case <-r.kick:
		case <-ctx.Done():
			r.finish(r.take(), 0, kv.ErrClosed)
			return
		}
		current := r.take()
		if current == nil {
			continue
		}
		start := time.Now()
		limited, cancel := context.WithTimeoutCause(ctx, r.limit, errSlowRound)
		revision, err := r.round(limited)
		cancel()
		r.stats.ReadRound(current.readers, time.Since(start), err)
		r.finish(current, revision, err)
	}
}

var errSlowRound = fmt.Errorf("%w: the leader did not confirm a read in time", kv.ErrUnavailable)

func (r *rounds) take() *round {
	r.mu.Lock()
	defer r.mu.Unlock()
	current := r.next
	r.next = nil
	return current
}

func (r *rounds) finish(current *round, revision uint64, err error) {
	if current != nil {
		current.revision, current.err = revision, err
		close(current.done)
	}
}

// revision joins the next exchange.
func (r *rounds) revision(ctx context.Context, done <-chan struct{}) (uint64, error) {
	r.mu.Lock()
	if r.next == nil {
		r.next = &round{done: make(chan struct{})}
	}
	mine := r.next
	mine.readers++
	r.mu.Unlock()
	select {
	case r.kick <- struct{}{}:
	default:
	}
	select {
	case <-mine.done:
		return mine.revision, mine.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-done:
		return 0, kv.ErrClosed
	}
}

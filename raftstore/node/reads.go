package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/status"
)

// reads finds out up to which revision the local state must have come before a read that begins
// now may be answered. One exchange serves all readers that wait when it begins.
type reads struct {
	round func(ctx context.Context) (uint64, error)
	limit time.Duration
	kick  chan struct{} // holds a token when somebody waits
	stats *status.Metrics

	mu   sync.Mutex
	next *round
}

// round is one exchange and those who wait for it.
type round struct {
	done     chan struct{}
	readers  int // guarded by reads.mu until the exchange begins
	revision uint64
	err      error
}

func newReads(limit time.Duration, stats *status.Metrics, exchange func(context.Context) (uint64, error)) *reads {
	return &reads{round: exchange, limit: limit, kick: make(chan struct{}, 1), stats: stats}
}

// run makes one exchange after the other while readers wait, until ctx ends.
func (r *reads) run(ctx context.Context) {
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

func (r *reads) take() *round {
	r.mu.Lock()
	defer r.mu.Unlock()
	current := r.next
	r.next = nil
	return current
}

func (r *reads) finish(current *round, revision uint64, err error) {
	if current != nil {
		current.revision, current.err = revision, err
		close(current.done)
	}
}

// revision joins the next exchange.
func (r *reads) revision(ctx, node context.Context) (uint64, error) {
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
	case <-node.Done():
		return 0, kv.ErrClosed
	}
}

// readRound is one exchange, wherever the leader is.
func (n *Node) readRound(ctx context.Context) (uint64, error) {
	over := n.election.LeaderChanged()
	leader, local, err := n.leaderAt()
	if err != nil {
		return 0, err
	}
	if local {
		return n.confirm(ctx)
	}
	return n.forwardRead(ctx, leader, over)
}

// ReadRevision returns a revision that reflects everything acknowledged before the call.
func (n *Node) ReadRevision(ctx context.Context) (uint64, error) {
	if n.ctx.Err() != nil {
		return 0, kv.ErrClosed
	}
	if err := n.guard.Err(); err != nil {
		return 0, err
	}
	return n.reads.revision(ctx, n.ctx)
}

package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/fsm"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/leader"
	"github.com/barque/barque/raftstore/logstore"
	"github.com/barque/barque/raftstore/peer"
	"github.com/barque/barque/raftstore/status"
)

const (
	// maxEntryBytes and maxEntryRequests close an entry: more would delay the first callers in it,
	// and heartbeats behind it.
	maxEntryBytes    = 1 << 20
	maxEntryRequests = 1024
	// maxInFlight is how many entries are under way to the quorum while the next one gathers.
	maxInFlight = 4
	// maxQueueBytes bounds the memory of the queue, in addition to its length: full of the largest
	// transactions it would take all of a machine's memory.
	maxQueueBytes = 64 << 20
)

// proposer gathers requests and brings them into the log. While entries are under way, the
// requests that come in wait, and go out together.
//
//	callers ──queue──▶ gather (one goroutine) ──▶ Raft ──flights──▶ settle (one goroutine) ──▶ callers
type proposer struct {
	apply   func(data []byte) raft.ApplyFuture
	now     func() time.Time // the wall clock
	queue   chan *proposal
	flights chan flight
	slots   chan struct{}
	done    <-chan struct{} // closed when the node stops
	disk    *logstore.Watchdog
	stats   *status.Metrics

	stateBytes int64        // goes into each entry
	queued     atomic.Int64 // bytes in the queue
}

// proposal is one caller's request. Its state decides which side may give up: the caller only while
// it is waiting.
type proposal struct {
	req    command.Request
	since  time.Time
	taken  atomic.Bool // by the gatherer, or by a caller that gives up
	answer chan answer
}

type answer struct {
	outcome command.Outcome
	err     error
}

// flight is an entry on its way.
type flight struct {
	future    raft.ApplyFuture
	proposals []*proposal
	start     time.Time
}

func newProposer(
	apply func([]byte) raft.ApplyFuture, now func() time.Time, length int, done <-chan struct{},
	disk *logstore.Watchdog, stats *status.Metrics,
) *proposer {
	return &proposer{
		apply: apply, now: now, queue: make(chan *proposal, length), flights: make(chan flight, maxInFlight),
		slots: make(chan struct{}, maxInFlight), done: done, disk: disk, stats: stats,
	}
}

// run works until the node stops. Then it fails the waiting requests, none of which was proposed.
func (p *proposer) run() {
	var settling sync.WaitGroup
	settling.Go(func() {
		for f := range p.flights {
			p.settle(f)
		}
	})
	p.gather()
	close(p.flights)
	settling.Wait()
}

func (p *proposer) gather() {
	for {
		var first *proposal
		select {
		case first = <-p.queue:
		case <-p.done:
			return
		}
		select {
		case p.slots <- struct{}{}:
		case <-p.done:
			first.fail(kv.ErrClosed)
			return
		}
		batch := p.fill(first)
		if len(batch) == 0 {
			<-p.slots
			continue
		}
		c := command.Command{Now: p.now().UnixMilli(), StateBytes: p.stateBytes,
			Requests: make([]command.Request, len(batch))}
		for i, each := range batch {
			c.Requests[i] = each.req
		}
		data, now := command.Encode(&c), time.Now()
		p.stats.Gathered(len(batch), len(data))
		for _, each := range batch {
			p.stats.QueueWait.Observe(now.Sub(each.since).Seconds())
		}
		p.flights <- flight{p.apply(data), batch, now}
	}
}

// fill takes waiting requests, up to the limits of one entry.
func (p *proposer) fill(first *proposal) []*proposal {
	var batch []*proposal
	bytes := 0
	take := func(each *proposal) {
		p.queued.Add(-int64(command.SizeOf(&each.req)))
		if each.taken.CompareAndSwap(false, true) {
			batch = append(batch, each)
			bytes += command.SizeOf(&each.req)
		}
	}
	take(first)
	for len(batch) < maxEntryRequests && bytes < maxEntryBytes {
		select {
		case each := <-p.queue:
			take(each)
		default:
			return batch
		}
	}
	return batch
}

// settle waits for an entry and answers its callers.
func (p *proposer) settle(f flight) {
	err := f.future.Error()
	<-p.slots
	if err == nil {
		response := f.future.Response().(*fsm.Response)
		if err = response.Err; err == nil {
			p.stats.Commit.Observe(time.Since(f.start).Seconds())
			for i, each := range f.proposals {
				each.answer <- answer{outcome: response.Outcomes[i]}
			}
			return
		}
	}
	err = proposeError(err)
	for _, each := range f.proposals {
		each.answer <- answer{err: err}
	}
}

// proposeError converts Raft's error for the request.
func proposeError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress),
		errors.Is(err, raft.ErrEnqueueTimeout):
		return fmt.Errorf("%w: %w", kv.ErrUnavailable, err)
	}
	// The leader may have stored or sent the entry before it failed, stepped down or stopped.
	return fmt.Errorf("%w: %w", kv.ErrUnknownOutcome, err)
}

func (each *proposal) fail(err error) { each.answer <- answer{err: err} }

// Propose brings the request into the log, wherever the leader is.
func (n *Node) Propose(ctx context.Context, req *command.Request) (command.Outcome, error) {
	outcome, err := n.proposeAnywhere(ctx, req)
	n.stats.Requests.WithLabelValues(status.OutcomeName(outcome, err)).Inc()
	return outcome, err
}

func (n *Node) proposeAnywhere(ctx context.Context, req *command.Request) (command.Outcome, error) {
	if err := n.guard.Err(); err != nil {
		return command.Outcome{}, err
	}
	leader, local, err := n.leaderAt()
	if err != nil {
		return command.Outcome{}, err
	}
	if local {
		if err := n.storage.Reserve.Takes(req); err != nil {
			return command.Outcome{}, err
		}
		return n.proposer.propose(ctx, req)
	}
	began, over := time.Now(), n.election.LeaderChanged(leader)
	f, err := n.peers.At(leader).CallUntil(ctx, over, peer.ErrLeaderChanged, peer.CallPropose,
		command.AppendRequest(nil, req))
	n.stats.Forwarded("write", began, err)
	if err != nil {
		return command.Outcome{}, peer.CallError(err, kv.ErrUnknownOutcome)
	}
	if f.Kind == peer.AnswerOK {
		outcome, err := command.DecodeOutcome(f.Payload)
		if err != nil {
			err = fmt.Errorf("%w: answer of the leader: %w", kv.ErrUnknownOutcome, err)
		}
		return outcome, err
	}
	return command.Outcome{}, peer.AnswerError(f)
}

// propose brings a request into the log of this server, which should be the leader.
func (p *proposer) propose(ctx context.Context, req *command.Request) (command.Outcome, error) {
	each := &proposal{req: *req, since: time.Now(), answer: make(chan answer, 1)}
	hanging := p.disk.Hanging()
	if !p.enqueue(each) {
		return command.Outcome{}, kv.ErrOverloaded
	}
	select {
	case a := <-each.answer:
		return a.outcome, a.err
	case <-ctx.Done():
		if each.taken.CompareAndSwap(false, true) {
			return command.Outcome{}, fmt.Errorf("%w: %w", kv.ErrUnavailable, context.Cause(ctx))
		}
		return command.Outcome{}, fmt.Errorf("%w: %w", kv.ErrUnknownOutcome, context.Cause(ctx))
	case <-hanging: // the answer would come when the disk does; the caller can ask the next leader
		if each.taken.CompareAndSwap(false, true) {
			return command.Outcome{}, leader.ErrDiskHangs
		}
		return command.Outcome{}, fmt.Errorf("%w: %w", kv.ErrUnknownOutcome, logstore.ErrHangs)
	case <-p.done:
	}
	if each.taken.CompareAndSwap(false, true) {
		return command.Outcome{}, kv.ErrClosed
	}
	a := <-each.answer // the node waits for entries under way
	return a.outcome, a.err
}

// enqueue puts a request into the queue, unless this is full.
func (p *proposer) enqueue(each *proposal) bool {
	size := int64(command.SizeOf(&each.req))
	if p.queued.Add(size) <= maxQueueBytes {
		select {
		case p.queue <- each:
			return true
		default:
		}
	}
	p.queued.Add(-size)
	return false
}

// noOp proposes an empty entry, past the queue. Raft's Barrier is no substitute: it does not reach
// the state machine, for whose index linearizable reads wait.
func (n *Node) noOp() raft.ApplyFuture {
	return n.raft.Apply(command.Encode(&command.Command{Now: n.cfg.Now().UnixMilli(), StateBytes: n.cfg.StateBytes}),
		n.cfg.Timeouts.Call)
}

package raftstore

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/fsm"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/mvcc"
)

// Options of a store in memory. The zero value is ready to use.
type Options struct {
	Limits Limits
	Logger *slog.Logger
}

// NewInMemory returns a store of one server without a disk: the same front, state machine and state
// as a replicated one, without Raft. It is for tests, and for tools that need a store during their
// run.
func NewInMemory(opts Options) *Store {
	limits := opts.Limits.withDefaults()
	state := mvcc.New(limits.history())
	return newStore(state, newAlone(state, limits.StateBytes), limits, 0, nil, opts.Logger)
}

// alone is the consensus of one: a proposal is applied at once. It always leads, in term 1.
type alone struct {
	state *mvcc.Store
	limit int64
	done  context.Context
	stop  context.CancelCauseFunc

	mu    sync.Mutex
	fsm   *fsm.FSM
	index uint64
	err   error // why the state machine has halted
}

func newAlone(state *mvcc.Store, limit int64) *alone {
	a := &alone{state: state, limit: limit}
	a.done, a.stop = context.WithCancelCause(context.Background())
	a.fsm = fsm.New(state, func(err error) { a.err = err })
	return a
}

// Propose goes the way of a real entry, through the encoding, so that tests on this store test it.
func (a *alone) Propose(ctx context.Context, req *command.Request) (command.Outcome, error) {
	if ctx.Err() != nil {
		return command.Outcome{}, fmt.Errorf("%w: %w", kv.ErrUnavailable, context.Cause(ctx))
	}
	data := command.Encode(
		&command.Command{Now: time.Now().UnixMilli(), StateBytes: a.limit, Requests: []command.Request{*req}})
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done.Err() != nil {
		return command.Outcome{}, kv.ErrClosed
	}
	a.index++
	response := a.fsm.Apply(&raft.Log{Index: a.index, Term: 1, Type: raft.LogCommand, Data: data}).(*fsm.Response)
	if response.Err != nil {
		return command.Outcome{}, fmt.Errorf("%w: %w", kv.ErrClosed, response.Err)
	}
	return response.Outcomes[0], nil
}

func (a *alone) ReadRevision(context.Context) (uint64, error) {
	if a.done.Err() != nil {
		return 0, kv.ErrClosed
	}
	return a.state.Revision(), nil
}

func (a *alone) AwaitLeadership(ctx context.Context) (context.Context, uint64, error) {
	if a.done.Err() != nil {
		return nil, 0, kv.ErrClosed
	}
	leading, end := context.WithCancelCause(ctx)
	detach := context.AfterFunc(a.done, func() { end(kv.ErrClosed) })
	context.AfterFunc(leading, func() { detach() })
	return leading, 1, nil
}

func (a *alone) Close() error {
	a.stop(kv.ErrClosed)
	return nil
}

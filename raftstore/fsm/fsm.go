package fsm

import (
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/mvcc"
)

// FSM drives an mvcc.Store by log entries. It implements raft.BatchingFSM. Raft calls it from one
// goroutine.
type FSM struct {
	state       *mvcc.Store
	sessions    *sessions
	halt        func(error)
	halted      error
	index       uint64 // of the newest entry seen
	term        uint64
	applied     Waiter
	latest      atomic.Pointer[Position]
	limit       atomic.Int64
	omitHistory func() bool // from snapshots; nil: never
}

// Position is a place in the Raft log.
type Position struct{ Index, Term uint64 }

var _ raft.BatchingFSM = (*FSM)(nil)

// New returns a state machine over the state. halt is called, once, when an entry cannot be
// applied; the state does not change any more after that.
func New(state *mvcc.Store, halt func(error)) *FSM {
	f := &FSM{state: state, sessions: newSessions(), halt: halt}
	f.latest.Store(&Position{})
	return f
}

// Response is the result of Apply for one entry: an outcome for each of its requests.
type Response struct {
	Index, Term uint64
	Outcomes    []command.Outcome
	Err         error // the entry was not applied, because the machine has halted
}

// Apply applies one entry.
func (f *FSM) Apply(log *raft.Log) any { return f.ApplyBatch([]*raft.Log{log})[0] }

// ApplyBatch applies the entries and then publishes all of them at once.
func (f *FSM) ApplyBatch(logs []*raft.Log) []any {
	responses := make([]any, len(logs))
	for i, log := range logs {
		responses[i] = f.apply(log)
	}
	f.state.Publish() // entries before one that halts the machine count, and are answered
	f.latest.Store(&Position{Index: f.index, Term: f.term})
	f.applied.reach(f.index)
	return responses
}

func (f *FSM) apply(log *raft.Log) *Response {
	r := &Response{Index: log.Index, Term: log.Term}
	if f.halted != nil {
		r.Err = f.halted
		return r
	}
	if log.Type == raft.LogCommand {
		c, err := command.Decode(log.Data)
		if err != nil {
			f.stop(fmt.Errorf("cannot apply log entry %d of term %d: %w; this server stops so that it does not "+
				"differ from the others: run it with the version that the others run", log.Index, log.Term, err))
			r.Err = f.halted
			return r
		}
		f.limit.Store(c.StateBytes)
		r.Outcomes = make([]command.Outcome, len(c.Requests))
		for i := range c.Requests {
			r.Outcomes[i] = f.request(&c.Requests[i], c, log)
		}
	}
	f.index, f.term = log.Index, log.Term
	return r
}

func (f *FSM) stop(err error) {
	f.halted = err
	f.halt(err)
}

// request applies one request, unless it was applied before.
func (f *FSM) request(req *command.Request, c *command.Command, log *raft.Log) command.Outcome {
	if req.ID == (command.ID{}) {
		return f.execute(req, c, log.Term)
	}
	session := f.sessions.get(req.ID.Origin, log.Index)
	session.forget(req.Done)
	if req.ID.Seq < session.done {
		return command.Outcome{Code: command.Spent, Revision: f.state.Applied()}
	}
	if revision, ok := session.answers[req.ID.Seq]; ok {
		if revision == refused {
			return command.Outcome{Code: command.Spent, Revision: f.state.Applied()}
		}
		return command.Outcome{Code: command.Applied, Revision: revision}
	}
	outcome := f.execute(req, c, log.Term)
	if outcome.Code == command.Applied {
		session.answers[req.ID.Seq] = outcome.Revision
	} else {
		session.answers[req.ID.Seq] = refused
	}
	return outcome
}

func (f *FSM) execute(req *command.Request, c *command.Command, term uint64) command.Outcome {
	switch req.Kind {
	case command.KindCompact:
		return command.Outcome{Code: command.Applied, Revision: f.state.Compact(req.Revision)}
	case command.KindExpire:
		if req.Expire.Term != term {
			return command.Outcome{Code: command.Fenced, Revision: f.state.Applied()}
		}
		revision := f.state.Expire(req.Expire.Due, int(req.Expire.Most), c.Now)
		return command.Outcome{Code: command.Applied, Revision: revision}
	case command.KindRestore:
		return f.restore(&req.Restore, c.Now, c.StateBytes, term)
	}
	if req.Txn.Term != 0 && req.Txn.Term != term {
		return command.Outcome{Code: command.Fenced, Revision: f.state.Applied()}
	}
	o := f.state.Apply(&req.Txn, c.Now, c.StateBytes)
	switch {
	case o.Conflict != nil:
		return command.Outcome{
			Code: command.Conflict, Revision: o.Revision, Key: o.Conflict.Key, Current: o.Conflict.Current,
		}
	case o.Full != nil:
		return command.Outcome{Code: command.NoSpace, Revision: o.Revision, Full: *o.Full}
	}
	return command.Outcome{Code: command.Applied, Revision: o.Revision}
}

// StateBytes returns the limit in the newest entry, 0 for none. It is the effective one, whatever
// this server's configuration.
func (f *FSM) StateBytes() int64 { return f.limit.Load() }

// Applied returns the newest entry with visible effects.
func (f *FSM) Applied() Position { return *f.latest.Load() }

// State returns the state that the machine drives.
func (f *FSM) State() *mvcc.Store { return f.state }

// Waiter returns the Waiter for applied entries.
func (f *FSM) Waiter() *Waiter { return &f.applied }

package fsm

import (
	"errors"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/mvcc"
)

// restore applies one step of a restore. A step that does not fit is refused, on all replicas
// alike.
func (f *FSM) restore(r *command.Restore, now, limit int64, term uint64) command.Outcome {
	if r.Term != 0 && r.Term != term {
		return command.Outcome{Code: command.Fenced, Revision: f.state.Applied()}
	}
	revision, err := f.state.Applied(), error(nil)
	switch r.Step {
	case command.RestoreBegin:
		err = f.state.BeginRestore(r.ID, now)
	case command.RestoreChunk:
		err = f.stage(r, now, limit)
	case command.RestoreCommit:
		revision, err = f.state.CommitRestore(r.ID, mvcc.RestoreTotals{Seq: r.Seq, Items: r.Items, Sum: r.Sum},
			r.AtLeast, now)
	case command.RestoreAbort:
		err = f.state.AbortRestore(r.ID, r.Seq, now)
	}
	if full, ok := errors.AsType[*kv.NoSpaceError](err); ok {
		return command.Outcome{Code: command.NoSpace, Revision: f.state.Applied(), Full: *full}
	}
	if err != nil {
		return command.Outcome{Code: command.Refused, Revision: f.state.Applied(), Key: err.Error()}
	}
	return command.Outcome{Code: command.Applied, Revision: revision}
}

func (f *FSM) stage(r *command.Restore, now, limit int64) error {
	var items []kv.Item
	for rest := r.Data; len(rest) > 0; {
		item, after, err := command.DecodeItem(rest)
		if err != nil {
			return errors.New("the items of the chunk cannot be read")
		}
		items, rest = append(items, item), after
	}
	return f.state.StageItems(r.ID, r.Seq, items, now, limit)
}

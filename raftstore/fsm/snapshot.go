package fsm

import (
	"errors"
	"io"

	"github.com/hashicorp/raft"
)

// Snapshot implements raft.FSM.
func (f *FSM) Snapshot() (raft.FSMSnapshot, error) { return nil, errors.ErrUnsupported }

// Restore implements raft.FSM.
func (f *FSM) Restore(rc io.ReadCloser) error { return errors.ErrUnsupported }

package integrity

import (
	"errors"
	"io"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/raftfix"
)

// guarded is the state machine as Raft sees it: one whose state is wrong gives no snapshots.
type guarded struct {
	raft.BatchingFSM
	quarantine *Quarantine
}

// GuardFSM returns the state machine without its snapshots while its state is known to be wrong.
func (g *Guard) GuardFSM(inner raft.BatchingFSM) raft.BatchingFSM {
	return &guarded{inner, g.Quarantine}
}

// Snapshot implements raft.FSM.
func (g *guarded) Snapshot() (raft.FSMSnapshot, error) {
	if err := g.quarantine.Err(); err != nil {
		return nil, err // without a wait
	}
	g.quarantine.persisting.RLock()
	inner, err := g.BatchingFSM.Snapshot()
	if err = errors.Join(g.quarantine.Err(), err); err != nil {
		g.quarantine.persisting.RUnlock()
		return nil, err
	}
	return &guardedSnapshot{inner, g.quarantine}, nil
}

// guardedSnapshot is one that Raft writes to disk. Its state may be found to be wrong meanwhile.
type guardedSnapshot struct {
	raft.FSMSnapshot
	quarantine *Quarantine
}

// Release implements raft.FSMSnapshot.
func (s *guardedSnapshot) Release() {
	s.FSMSnapshot.Release()
	s.quarantine.persisting.RUnlock()
}

// guardedTransport is Raft's transport. A server in quarantine that leads for a moment must not
// give its state to another.
type guardedTransport struct {
	raftfix.Transport
	quarantine *Quarantine
}

// GuardTransport returns Raft's transport without snapshots while the state is known to be wrong.
func (g *Guard) GuardTransport(inner raftfix.Transport) raftfix.Transport {
	return &guardedTransport{inner, g.Quarantine}
}

// InstallSnapshot implements raft.Transport.
func (t *guardedTransport) InstallSnapshot(
	id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse,
	data io.Reader,
) error {
	if err := t.quarantine.Err(); err != nil {
		return err
	}
	return t.Transport.InstallSnapshot(id, target, args, resp, data)
}

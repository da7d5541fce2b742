package integrity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/raftstore/disk"
	"github.com/barque/barque/raftstore/faultpoint"
	"github.com/barque/barque/raftstore/fsm"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/mvcc"
	"github.com/barque/barque/raftstore/peer"
	"github.com/barque/barque/raftstore/snapshot"
)

// A server in quarantine gets a right state by itself, while it runs:
//
//  1. The wrong state is written to disk.WrongFile, to be looked at. One copy stays.
//  2. The leader is asked. It takes a snapshot and sends it as Raft does. That becomes the newest
//     snapshot on this disk, and is verified.
//  3. The older snapshots are set aside, and then the mark of the quarantine is removed.
//  4. Options.OnNewState tells the program to close this server and open it again.
//
// A crash before the mark is gone repeats all of it. After that the snapshot is the only one.
//
// Identity, log and votes stay. They hold the server's promises to the others, and they are right,
// so no acknowledged write is at risk. Only the state is replaced, by the leader's, up to a
// committed entry. From there on the server applies its own log again, which reaches from before
// that entry to behind it: the entry is not before a snapshot of this server, and is applied. The
// group has the same members and the same quorum all the time.
//
// When the state differs again within transferPause, a copy does not heal the fault, which may be
// the machine's memory. The server stays in quarantine until an operator has looked.
const (
	transferPause = 24 * time.Hour
	// The leader takes a snapshot for each attempt, so attempts become rarer.
	transferRetry    = 2 * time.Second
	transferRetryMax = time.Minute
)

// transferred records the last transfer, in disk.TransferFile.
type transferred struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason"` // of the quarantine
	Index  uint64    `json:"index"`  // of the newest entry in the state
}

// heal gets a right state for the next Open. It ends when there is one, or with the node.
func (g *Guard) heal(ctx context.Context) {
	if g.opts.Dir == "" || g.opts.Keep {
		g.treat("it stays so, as it is configured to")
		return
	}
	var last transferred
	if data, err := os.ReadFile(filepath.Join(g.opts.Dir, disk.TransferFile)); err == nil &&
		json.Unmarshal(data, &last) == nil && time.Since(last.At) < transferPause {
		g.opts.Logger.Error(
			"this server got a right state not long ago and differs again, so it stays in quarantine: look for a fault of this machine, its memory first; then remove it from the cluster",
			"mend", g.opts.JoinAgain, "last", last.At, "lastReason", last.Reason)
		g.treat("it got a right state not long ago already, so it stays so: look for a fault of this machine")
		return
	}
	if err := g.keepWrongState(); err != nil {
		g.opts.Logger.Warn("the wrong state could not be written to be looked at", "file",
			filepath.Join(g.opts.Dir, disk.WrongFile), "err", err)
	}
	g.treat("it is getting a right state from the leader")
	for pause := transferRetry; ; pause = min(2*pause, transferRetryMax) {
		err := g.ask(ctx)
		if err == nil {
			err = g.adopt(ctx)
		}
		if err == nil {
			break
		}
		if g.treat("it has no right state from the leader yet: " + err.Error()) {
			g.opts.Logger.Warn("this server has no right state from the leader yet", "err", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
	g.treat("a right state is here, and is taken when this server starts again")
	if g.opts.OnNewState != nil {
		g.opts.OnNewState()
	}
}

// ask asks the leader to send its state, unless one is here, of which the answer was lost.
func (g *Guard) ask(ctx context.Context) error {
	if g.received.Load() != nil {
		return nil
	}
	err := g.server.TellLeader(ctx, peer.CallSendState, g.opts.ServerID)
	if _, unknown := errors.AsType[*peer.RefusedError](err); unknown {
		return fmt.Errorf("the leader is of another version, and is asked again until it is of this one: %w", err)
	}
	return err
}

// keepWrongState writes this server's state to a file, for the search for the reason.
func (g *Guard) keepWrongState() error {
	view := g.server.State().Latest()
	return atomicfile.WriteFrom(filepath.Join(g.opts.Dir, disk.WrongFile), 0o600, func(w io.Writer) error {
		return snapshot.Write(w, snapshot.Source{
			Meta:  snapshot.Meta{Revision: view.Revision(), Hash: view.Hash(), Items: uint64(view.Len())},
			Items: func(yield func(kv.Item) bool) { view.Ascend("", "", yield) },
		})
	})
}

// HandleSendState sends this server's state to a member in quarantine, which has asked for it.
func (g *Guard) HandleSendState(ctx context.Context, payload []byte) (byte, []byte) {
	var id string
	err := json.Unmarshal(payload, &id)
	if err == nil {
		err = g.Err()
	}
	if err == nil {
		err = g.server.SendState(ctx, id)
	}
	if err != nil {
		return peer.AnswerUnavailable, []byte(err.Error())
	}
	return peer.AnswerOK, nil
}

// TakeState makes the state that the leader sends a snapshot.
func (g *Guard) TakeState(m *raft.InstallSnapshotRequest, state io.Reader) error {
	if g.Err() == nil {
		return fmt.Errorf("server %s is not in quarantine", g.opts.ServerID)
	}
	sink, err := g.server.Snapshots().Create(m.SnapshotVersion, m.LastLogIndex, m.LastLogTerm,
		raft.DecodeConfiguration(m.Configuration), m.ConfigurationIndex, nil)
	if err != nil {
		return err
	}
	n, err := io.Copy(sink, state)
	if err == nil && n < m.Size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write the leader's state: %w", err), sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return err
	}
	g.received.Store(new(sink.ID()))
	return nil
}

// verify reads the whole snapshot, and sets it aside if it is damaged.
func (g *Guard) verify(id string) error {
	_, state, err := g.server.Snapshots().Open(id)
	if err == nil {
		err = fsm.New(mvcc.New(g.opts.History), func(error) {}).Restore(state) // which closes it
	}
	if err != nil {
		return errors.Join(fmt.Errorf("verify the leader's state: %w", err), g.server.SetAside(id, err))
	}
	return nil
}

// adopt makes the received state the only one on disk, and ends the quarantine for the next start.
func (g *Guard) adopt(ctx context.Context) error {
	if !g.persisting.TryLock() {
		return errors.New("a snapshot of the wrong state is still being written")
	}
	g.persisting.Unlock() // no other one begins
	all, err := g.server.Snapshots().List()
	if err != nil {
		return err
	}
	id := g.received.Swap(nil)
	if len(all) == 0 || id == nil || all[0].ID != *id {
		return errors.New("what came is not the newest snapshot here")
	}
	if err := g.verify(*id); err != nil {
		return err
	}
	index := all[0].Index
	waiting, cancel := context.WithTimeout(ctx, g.opts.CallTimeout)
	defer cancel()
	if err := g.server.AwaitApplied(waiting, index); err != nil {
		return fmt.Errorf("the log of this server does not reach to entry %d yet: %w", index, err)
	}
	fault := faultpoint.Func(g.opts.FaultPoint)
	fault.At(faultpoint.TransferWritten)
	for _, wrong := range all[1:] {
		if err := g.server.SetAside(wrong.ID,
			errors.New("this server is in quarantine: its state may be wrong")); err != nil {
			return err
		}
	}
	fault.At(faultpoint.TransferInstalled)
	if err := atomicfile.Remove(g.path); err != nil {
		return err
	}
	fault.At(faultpoint.TransferUnmarked)
	g.opts.Logger.Warn(
		"this server was in quarantine and has got a right state from the leader: it takes it when it is opened again",
		"index", index, "reason", g.Why())
	return disk.WriteJSON(filepath.Join(g.opts.Dir, disk.TransferFile),
		transferred{At: time.Now().UTC(), Reason: g.Why(), Index: index})
}

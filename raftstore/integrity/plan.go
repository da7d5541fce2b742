package integrity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	"github.com/barque/barque/raftstore/snapshot"
)

// A server in quarantine gets a right state by itself:
//
//  1. while it runs: the wrong state is written to disk.WrongFile, to be looked at; one copy stays
//  2. while it runs: the leader's snapshot comes to disk.TransferDir, and all of it is verified
//  3. planFile is written beside it, last: from here on there is a plan
//  4. Options.OnNewState tells the program to close this server and open it again
//  5. at the next Open, before anything is read: the snapshots are set aside, the transferred state
//     becomes the only one, the mark of the quarantine goes, and the plan goes last
//
// Each step of 5 may be repeated, so a crash in it is finished at the next start. Without a plan
// disk.TransferDir is removed.
//
// Identity, log and votes stay. They hold the server's promises to the others, and they are right,
// so no acknowledged write is at risk. Only the state is replaced, by the leader's, up to a
// committed entry. From there on the server applies its own log again. The group has the same
// members and the same quorum all the time. A server in quarantine takes no snapshots, and no state
// that is older than one of its snapshots. So its log reaches back to the end of the transferred
// state.
//
// When the state differs again within transferPause, a copy does not heal the fault, which may be
// the machine's memory. The server stays in quarantine until an operator has looked.
const (
	stateFile = "state.bin"
	planFile  = "meta.json"

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
	if last, err := readTransfer(g.opts.Dir); err == nil && time.Since(last.At) < transferPause {
		g.opts.Logger.Error("this server got a right state not long ago and differs again, so it stays in quarantine: look for a fault of this machine, its memory first; "+
			"then remove it from the cluster and "+g.opts.JoinAgain, "last", last.At, "lastReason", last.Reason)
		g.treat("it got a right state not long ago already, so it stays so: look for a fault of this machine")
		return
	}
	if err := g.keepWrongState(); err != nil {
		g.opts.Logger.Warn("the wrong state could not be written to be looked at", "file", filepath.Join(g.opts.Dir, disk.WrongFile), "err", err)
	}
	g.treat("it is getting a right state from the leader")
	pause, told := transferRetry, ""
	for {
		err := g.fetch(ctx, g.plan)
		if err == nil {
			break
		}
		if text := err.Error(); text != told {
			told = text
			g.treat("it has no right state from the leader yet: " + text)
			g.opts.Logger.Warn("no right state yet", "err", err)
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, transferRetryMax)
		case <-ctx.Done():
			return
		}
	}
	g.treat("a right state is here, and is taken when this server starts again")
	g.opts.Logger.Info("a right state is here and verified: this server takes it when it is opened again", "dir", filepath.Join(g.opts.Dir, disk.TransferDir))
	if g.opts.OnNewState != nil {
		g.opts.OnNewState()
	}
}

// keepWrongState writes this server's state to a file, for those who look for the reason.
func (g *Guard) keepWrongState() error {
	view := g.server.State().Latest()
	return atomicfile.WriteFrom(filepath.Join(g.opts.Dir, disk.WrongFile), 0o600, func(w io.Writer) error {
		return snapshot.Write(w, snapshot.Source{
			Meta:  snapshot.Meta{Revision: view.Revision(), Hash: view.Hash(), Items: uint64(view.Len())},
			Items: func(yield func(kv.Item) bool) { view.Ascend("", "", yield) },
		})
	})
}

// plan writes a plan: the state, verified, and then its description.
func (g *Guard) plan(meta *raft.SnapshotMeta, state io.Reader) error {
	dir := filepath.Join(g.opts.Dir, disk.TransferDir)
	if err := errors.Join(os.RemoveAll(dir), atomicfile.MakeDir(dir)); err != nil {
		return err
	}
	path := filepath.Join(dir, stateFile)
	if err := atomicfile.WriteFrom(path, 0o600, func(w io.Writer) error { _, err := io.Copy(w, state); return err }); err != nil {
		return fmt.Errorf("write the leader's state: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	if err := fsm.New(mvcc.New(g.opts.History), func(error) {}).Restore(f); err != nil { // which closes it
		return fmt.Errorf("verify the leader's state: %w", err)
	}
	fault := faultpoint.Func(g.opts.FaultPoint)
	fault.At(faultpoint.TransferBeforePlan)
	if err := disk.WriteJSON(filepath.Join(dir, planFile), meta); err != nil {
		return err
	}
	fault.At(faultpoint.TransferAfterPlan)
	return nil
}

// AdoptState carries out the plan, if there is one.
func AdoptState(o *disk.Options) error {
	if o.InMemory {
		return nil
	}
	dir := filepath.Join(o.Dir, disk.TransferDir)
	data, err := os.ReadFile(filepath.Join(dir, planFile))
	if errors.Is(err, fs.ErrNotExist) {
		return os.RemoveAll(dir)
	}
	if err != nil {
		return fmt.Errorf("read the plan for a new state: %w", err)
	}
	meta := new(raft.SnapshotMeta)
	if err := json.Unmarshal(data, meta); err != nil {
		return fmt.Errorf("%s is damaged: %w; remove the directory %s, and the server gets another state", planFile, err, dir)
	}
	var mark disk.QuarantineMark
	if data, err := os.ReadFile(disk.QuarantinePath(o.Dir)); err == nil {
		_ = json.Unmarshal(data, &mark) // the reason is told only
	}
	fault := faultpoint.Func(o.FaultPoint)
	older, err := install(o, meta, filepath.Join(dir, stateFile))
	if err != nil {
		return fmt.Errorf("take the right state: %w", err)
	}
	fault.At(faultpoint.TransferInstalled)
	if older {
		o.Logger.Warn("the transferred state is older than a snapshot on this disk: another one is fetched", "index", meta.Index)
		return removePlan(dir)
	}
	if err := disk.WriteJSON(filepath.Join(o.Dir, disk.TransferFile), transferred{At: time.Now().UTC(), Reason: mark.Reason, Index: meta.Index}); err != nil {
		return err
	}
	// Before the plan goes: without it, a mark that came back after a loss of power would stay.
	if err := atomicfile.Remove(disk.QuarantinePath(o.Dir)); err != nil {
		return err
	}
	fault.At(faultpoint.TransferUnmarked)
	o.Logger.Warn("this server was in quarantine and has got a right state from the leader", "index", meta.Index, "reason", mark.Reason)
	return removePlan(dir)
}

// install makes the transferred state the newest snapshot, and the only one that is read. When
// there is a newer one, which only a leader can have sent meanwhile, it reports that and does
// nothing: the log may begin after the transferred state then.
func install(o *disk.Options, taken *raft.SnapshotMeta, path string) (older bool, err error) {
	snapshots, err := disk.OpenSnapshots(o, func(uint64) error { return nil }, nil)
	if err != nil {
		return false, err
	}
	all, err := snapshots.List()
	if err != nil {
		return false, err
	}
	for _, meta := range all {
		if meta.Index > taken.Index {
			return true, nil
		}
	}
	for _, meta := range all {
		snapshots.SetAside(meta.ID, errors.New("this server was in quarantine: its state may be wrong"))
	}
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	sink, err := snapshots.Create(taken.Version, taken.Index, taken.Term, taken.Configuration, taken.ConfigurationIndex, nil)
	if err != nil {
		return false, err
	}
	if _, err := io.Copy(sink, f); err != nil {
		return false, errors.Join(err, sink.Cancel())
	}
	return false, sink.Close()
}

// removePlan ends the plan, and then removes its files.
func removePlan(dir string) error {
	if err := atomicfile.Remove(filepath.Join(dir, planFile)); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func readTransfer(dir string) (transferred, error) {
	var r transferred
	data, err := os.ReadFile(filepath.Join(dir, disk.TransferFile))
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	return r, err
}

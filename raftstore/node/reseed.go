package node

import (
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
	"github.com/barque/barque/raftstore/faultpoint"
	"github.com/barque/barque/raftstore/fsm"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/mvcc"
	"github.com/barque/barque/raftstore/snapdir"
	"github.com/barque/barque/raftstore/snapshot"
)

// A server in quarantine gets a right state by itself:
//
//  1. while it runs: the wrong state is written to wrongFile, to be looked at; one copy stays
//  2. while it runs: the leader's snapshot comes to seedDir, and all of it is verified
//  3. seedMeta is written beside it, last: from here on there is a plan
//  4. Config.OnReseed tells the program to close this server and open it again
//  5. at the next Open, before anything is read: the snapshots are set aside, the seed becomes the
//     only one, the mark of the quarantine goes, and the plan goes last
//
// Each step of 5 may be repeated, so a crash in it is finished at the next start; without a plan,
// seedDir is rubbish.
//
// Its identity, its log and its votes stay, and this is why no acknowledged write is put at risk:
// what the server has promised to others is in them, and they are right. Only what it has made of
// the log is replaced, by what the leader has made of it up to an entry that is committed; from
// there on it applies its own log again. The group has the same members and the same quorum all the
// time. It takes no snapshots in quarantine, and takes no seed that is older than one of its
// snapshots, so its log reaches back to the seed's end.
//
// When the state differs again within reseedPause, something is wrong that a copy does not heal,
// such as the machine's memory: it stays in quarantine until an operator has looked.
const (
	seedDir      = "seed"
	seedState    = "state.bin"
	seedMeta     = "meta.json"
	wrongFile    = "quarantined.snapshot"
	reseededFile = "reseeded.json"

	reseedPause = 24 * time.Hour
	// The leader takes a snapshot for each try, so these become rarer.
	reseedRetry    = 2 * time.Second
	reseedRetryMax = time.Minute
)

// reseeded is what stands in reseededFile.
type reseeded struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason"` // of the quarantine
	Index  uint64    `json:"index"`  // of the newest entry in the seed
}

// guarded is the state machine as Raft sees it: one whose state is wrong gives no snapshots.
type guarded struct {
	*fsm.FSM
	quarantine *quarantine
}

// Snapshot implements raft.FSM.
func (g *guarded) Snapshot() (raft.FSMSnapshot, error) {
	if err := g.quarantine.err(); err != nil {
		return nil, err
	}
	return g.FSM.Snapshot()
}

// reseed gets a right state for the next Open. It ends when there is one, or with the node.
func (n *Node) reseed() {
	if n.cfg.InMemory || n.cfg.KeepQuarantine {
		n.quarantine.treat("it stays so, as it is configured to")
		return
	}
	if last, err := readReseeded(n.cfg.Dir); err == nil && time.Since(last.At) < reseedPause {
		n.cfg.Logger.Error("this server got a right state not long ago and differs again, so it stays in quarantine: look for a fault of this machine, its memory first; "+
			"then remove it from the cluster and "+n.cfg.JoinAgain, "last", last.At, "lastReason", last.Reason)
		n.quarantine.treat("it got a right state not long ago already, so it stays so: look for a fault of this machine")
		return
	}
	if err := n.keepWrongState(); err != nil {
		n.cfg.Logger.Warn("the wrong state could not be written to be looked at", "file", filepath.Join(n.cfg.Dir, wrongFile), "err", err)
	}
	n.quarantine.treat("it is getting a right state from the leader")
	pause, told := reseedRetry, ""
	for {
		err := n.fetchSeed(n.ctx, n.takeSeed)
		if err == nil {
			break
		}
		if text := err.Error(); text != told {
			told = text
			n.quarantine.treat("it has no right state from the leader yet: " + text)
			n.cfg.Logger.Warn("no right state yet", "err", err)
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, reseedRetryMax)
		case <-n.ctx.Done():
			return
		}
	}
	n.quarantine.treat("a right state is here, and is taken when this server starts again")
	n.cfg.Logger.Info("a right state is here and verified: this server takes it when it is opened again", "dir", filepath.Join(n.cfg.Dir, seedDir))
	if n.cfg.OnReseed != nil {
		n.cfg.OnReseed()
	}
}

// keepWrongState writes what this server has made of the log, for those who look for the reason.
func (n *Node) keepWrongState() error {
	view := n.state.Latest()
	return atomicfile.WriteFrom(filepath.Join(n.cfg.Dir, wrongFile), 0o600, func(w io.Writer) error {
		return snapshot.Write(w, snapshot.Source{
			Meta:  snapshot.Meta{Revision: view.Revision(), Hash: view.Hash(), Items: uint64(view.Len())},
			Items: func(yield func(kv.Item) bool) { view.Ascend("", "", yield) },
		})
	})
}

// takeSeed writes a plan: the state, verified, and then what it is.
func (n *Node) takeSeed(meta *raft.SnapshotMeta, state io.Reader) error {
	dir := filepath.Join(n.cfg.Dir, seedDir)
	if err := errors.Join(os.RemoveAll(dir), atomicfile.MakeDir(dir)); err != nil {
		return err
	}
	path := filepath.Join(dir, seedState)
	if err := atomicfile.WriteFrom(path, 0o600, func(w io.Writer) error { _, err := io.Copy(w, state); return err }); err != nil {
		return fmt.Errorf("write the leader's state: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	if err := fsm.New(mvcc.New(n.cfg.History), func(error) {}).Restore(f); err != nil { // which closes it
		return fmt.Errorf("verify the leader's state: %w", err)
	}
	fault := faultpoint.Func(n.cfg.FaultPoint)
	fault.At(faultpoint.SeedBeforePlan)
	if err := writeJSON(filepath.Join(dir, seedMeta), meta); err != nil {
		return err
	}
	fault.At(faultpoint.SeedAfterPlan)
	return nil
}

// adoptSeed does what the plan says, if there is one.
func adoptSeed(cfg *Config) error {
	if cfg.InMemory {
		return nil
	}
	dir := filepath.Join(cfg.Dir, seedDir)
	data, err := os.ReadFile(filepath.Join(dir, seedMeta))
	if errors.Is(err, fs.ErrNotExist) {
		return os.RemoveAll(dir)
	}
	if err != nil {
		return fmt.Errorf("read the plan for a new state: %w", err)
	}
	seed := new(raft.SnapshotMeta)
	if err := json.Unmarshal(data, seed); err != nil {
		return fmt.Errorf("%s is damaged: %w; remove the directory %s, and the server gets another state", seedMeta, err, dir)
	}
	var mark mark
	if data, err := os.ReadFile(filepath.Join(cfg.Dir, quarantineFile)); err == nil {
		_ = json.Unmarshal(data, &mark) // the reason is told only
	}
	fault := faultpoint.Func(cfg.FaultPoint)
	older, err := installSeed(cfg, seed, filepath.Join(dir, seedState))
	if err != nil {
		return fmt.Errorf("take the right state: %w", err)
	}
	fault.At(faultpoint.SeedInstalled)
	if older {
		cfg.Logger.Warn("the state that was got is older than a snapshot that is here: another is got", "index", seed.Index)
		return removePlan(dir)
	}
	if err := writeJSON(filepath.Join(cfg.Dir, reseededFile), reseeded{At: time.Now().UTC(), Reason: mark.Reason, Index: seed.Index}); err != nil {
		return err
	}
	// Before the plan goes: without it, a mark that came back after a loss of power would stay.
	if err := atomicfile.Remove(filepath.Join(cfg.Dir, quarantineFile)); err != nil {
		return err
	}
	fault.At(faultpoint.SeedUnmarked)
	cfg.Logger.Warn("this server was in quarantine and has got a right state from the leader", "index", seed.Index, "reason", mark.Reason)
	return removePlan(dir)
}

// installSeed makes the seed the newest snapshot, and the only one that is read. It reports, and
// does nothing, when a newer one is there, which only a leader can have sent meanwhile: the log may
// begin after the seed then.
func installSeed(cfg *Config, seed *raft.SnapshotMeta, path string) (older bool, err error) {
	snapshots, err := snapdir.Open(snapdir.Options{
		Dir: filepath.Join(cfg.Dir, snapshotDir), Keep: keptSnapshots, Logger: cfg.Logger, Fault: cfg.FaultPoint,
		Done: func(uint64) error { return nil },
	})
	if err != nil {
		return false, err
	}
	all, err := snapshots.List()
	if err != nil {
		return false, err
	}
	for _, meta := range all {
		if meta.Index > seed.Index {
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
	sink, err := snapshots.Create(seed.Version, seed.Index, seed.Term, seed.Configuration, seed.ConfigurationIndex, nil)
	if err != nil {
		return false, err
	}
	if _, err := io.Copy(sink, f); err != nil {
		return false, errors.Join(err, sink.Cancel())
	}
	return false, sink.Close()
}

// removePlan ends the plan, and then removes what belonged to it.
func removePlan(dir string) error {
	if err := atomicfile.Remove(filepath.Join(dir, seedMeta)); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func readReseeded(dir string) (reseeded, error) {
	var r reseeded
	data, err := os.ReadFile(filepath.Join(dir, reseededFile))
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	return r, err
}

package recovery

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/disk"
	"github.com/barque/barque/raftstore/fsm"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/logstore"
	"github.com/barque/barque/raftstore/mvcc"
	"github.com/barque/barque/raftstore/raftlog"
)

// Config names the directory that becomes its own group.
type Config struct {
	// Dir of the server, which must not run.
	Dir string
	// ClusterID of the new group: another one than the directory has, and than any other group ever
	// had.
	ClusterID string
	Logger    *slog.Logger
	// Now is the wall clock, for tests. Default: time.Now.
	Now func() time.Time
	// WrapLog and WrapSnapshots are for tests, as in node.Config.
	WrapLog       func(logstore.Store) logstore.Store
	WrapSnapshots func(raft.SnapshotStore) raft.SnapshotStore
}

// recoverGap is how far a recovery raises the revision. The lost servers may have handed out
// revisions that this one never saw. Those must not come again with other contents.
const recoverGap = 1 << 30

// Recover makes the directory of a server that has lost its quorum for good the only member of a
// new group, with all of its data: the newest snapshot and its whole log. Writes on the lost
// servers only are gone. Entries in this server's log that were never acknowledged count from now
// on.
//
// The new group has another ID, so the old members and it refuse each other. An old member that
// comes back learns that it is superseded, and stops. Revisions continue far above the old ones,
// and watchers of old ones learn that these are compacted.
//
// A crash in the middle leaves a directory that Open refuses. The same call finishes it, and does
// nothing if it is finished.
func Recover(cfg Config) error {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	lock, err := disk.LockExisting(cfg.Dir)
	if err != nil {
		return err
	}
	return errors.Join(recoverLocked(cfg), lock.Release())
}

func recoverLocked(cfg Config) error {
	o := existing(cfg.Dir, cfg.Logger)
	o.WrapLog, o.WrapSnapshots = cfg.WrapLog, cfg.WrapSnapshots
	id, err := disk.OpenIdentity(&o, disk.Owner{})
	if err != nil {
		return err
	}
	begun, err := disk.ReadRecovery(&o)
	switch {
	case err != nil:
		return err
	case cfg.ClusterID == "":
		return errors.New("raftstore: a recovery needs the ID of the new cluster")
	case begun != nil && begun.ClusterID != cfg.ClusterID:
		return fmt.Errorf("%s is in the middle of a recovery as cluster %q: finish that one", cfg.Dir, begun.ClusterID)
	case begun == nil && id.ClusterID == cfg.ClusterID:
		return nil // it is finished
	case begun == nil:
		if err := refuseUnfit(&o); err != nil {
			return err
		}
		if err := disk.BeginRecovery(cfg.Dir, cfg.ClusterID); err != nil {
			return fmt.Errorf("begin the recovery: %w", err)
		}
	}
	if id.ClusterID != cfg.ClusterID {
		if err := standAlone(&o, id, cfg); err != nil {
			return err
		}
		id.ClusterID = cfg.ClusterID
		if err := id.Write(cfg.Dir); err != nil {
			return fmt.Errorf("give the store its new cluster: %w", err)
		}
	}
	if err := disk.EndRecovery(cfg.Dir); err != nil {
		return fmt.Errorf("end the recovery: %w", err)
	}
	cfg.Logger.Warn("the store was recovered as the only member of a new cluster", "server", id.ServerID, "cluster",
		id.ClusterID)
	return nil
}

func refuseUnfit(o *disk.Options) error {
	if err := disk.CheckNotRemoved(o, ""); err != nil {
		return err
	}
	why, err := disk.ReadQuarantine(o.Dir, "")
	if err == nil && why != "" {
		err = fmt.Errorf("the state in %s is known to be wrong: %s; recover another server, or a backup", o.Dir, why)
	}
	return err
}

// standAlone makes a snapshot of all that the server has, with itself as the only member, and
// empties the log. It may be repeated: the snapshot comes first.
func standAlone(o *disk.Options, id disk.Identity, rc Config) error {
	// The snapshot may need the room. The server takes it again when it starts.
	if err := disk.RemoveReserve(o.Dir); err != nil {
		return err
	}
	var halted error
	machine := fsm.New(mvcc.New(mvcc.Limits{}), func(err error) { halted = err })
	s, err := openExisting(o, machine)
	if err != nil {
		return err
	}
	_, trans := raft.NewInmemTransport("")
	defer trans.Close()
	cfg := raft.DefaultConfig()
	cfg.LocalID, cfg.Logger = raft.ServerID(id.ServerID), raftlog.New(o.Logger)
	successions, err := successions(o, id, rc)
	if err != nil {
		return err
	}
	alone := raft.Configuration{Servers: []raft.Server{{
		ID: raft.ServerID(id.ServerID), Address: raft.ServerAddress(group.Nowhere(id.ServerID)), Suffrage: raft.Voter,
	}}}
	err = raft.RecoverCluster(cfg, &ahead{machine, id.ServerID, successions}, s.Log, s.Log, s.Snapshots, trans, alone)
	if halted != nil {
		err = halted
	}
	if err = errors.Join(err, s.Log.Close()); err != nil {
		return fmt.Errorf("recover %s: %w", o.Dir, err)
	}
	return nil
}

// successions name the predecessors of the new cluster: the cluster of the directory, and, if the
// directory is marked, that cluster's successor. The operator who recovers this directory has
// abandoned that one, so its servers are to stop, and its agents to follow.
func successions(o *disk.Options, id disk.Identity, rc Config) ([]kv.Op, error) {
	clusters := []string{id.ClusterID}
	mark, err := disk.ReadSuperseded(o, id.ClusterID)
	if err != nil {
		return nil, err
	}
	if mark != nil && mark.By != "" { // otherwise it is unreadable
		clusters = append(clusters, mark.Successor)
	}
	now := rc.Now().UTC()
	var ops []kv.Op
	for _, cluster := range clusters {
		op, err := group.Succession{Cluster: cluster, Successor: rc.ClusterID, By: id.ServerID, At: now}.Op()
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	return ops, nil
}

// ahead is a state machine whose snapshot is of a later revision, without any decision about the
// survivor: the lost group may have decided to remove or demote it.
type ahead struct {
	*fsm.FSM
	survivor string
	// successions go into the state.
	successions []kv.Op
}

// Snapshot implements raft.FSM.
func (a *ahead) Snapshot() (raft.FSMSnapshot, error) {
	change := kv.Txn{Ops: append([]kv.Op{{Kind: kv.Delete, Key: group.DecisionPrefix + a.survivor}}, a.successions...)}
	a.State().Apply(&change, a.State().Now(), 0)
	a.State().Advance(a.State().Revision() + recoverGap)
	a.State().Publish()
	return a.FSM.Snapshot()
}

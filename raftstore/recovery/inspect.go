package recovery

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/disk"
	"github.com/barque/barque/raftstore/fsm"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/mvcc"
)

// Report describes the directory of a stopped server.
type Report struct {
	Dir       string `json:"dir"`
	ServerID  string `json:"serverID"`
	ClusterID string `json:"clusterID"`

	// Term is the newest term in which the server took part. LastTerm and LastIndex are of its
	// newest entry: the server with the higher ones has more of the writes.
	Term      uint64 `json:"term"`
	LastTerm  uint64 `json:"lastTerm"`
	LastIndex uint64 `json:"lastIndex"`
	// SnapshotIndex is the last entry in the newest complete snapshot; 0 without one.
	SnapshotIndex uint64 `json:"snapshotIndex"`
	// Revision, Keys and StateHash are of the state with all these entries. One server does not
	// know whether the last of them were acknowledged.
	Revision  uint64 `json:"revision"`
	Keys      int    `json:"keys"`
	StateHash string `json:"stateHash"`
	// Members is the newest configuration of the group in the server's log.
	Members []group.Member `json:"members"`

	Quarantined string         `json:"quarantined,omitempty"` // why its state is wrong
	Removed     *group.Removal `json:"removed,omitempty"`     // it was taken out of the group
	// Superseded is set if the server has learned that its cluster has a successor. Predecessors
	// are the clusters that its own has replaced.
	Superseded   *group.Succession  `json:"superseded,omitempty"`
	Predecessors []group.Succession `json:"predecessors,omitempty"`
}

// Newer reports whether the one directory has more of the log than the other one.
func (r *Report) Newer(other *Report) bool {
	if r.LastTerm != other.LastTerm {
		return r.LastTerm > other.LastTerm
	}
	return r.LastIndex > other.LastIndex
}

// Inspect reads the directory of a server that does not run. It changes nothing in it that matters
// to the server.
func Inspect(dir string, logger *slog.Logger) (*Report, error) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	lock, err := disk.LockExisting(dir)
	if err != nil {
		return nil, err
	}
	o := existing(dir, logger)
	r, err := inspect(&o)
	if err = errors.Join(err, lock.Release()); err != nil {
		return nil, err
	}
	return r, nil
}

func inspect(o *disk.Options) (*Report, error) {
	id, err := disk.OpenIdentity(o, disk.Owner{})
	if err != nil {
		return nil, err
	}
	r := &Report{Dir: o.Dir, ServerID: id.ServerID, ClusterID: id.ClusterID}
	if err := r.marks(o); err != nil {
		return nil, err
	}
	machine := fsm.New(mvcc.New(mvcc.Limits{}), func(error) {})
	s, err := openExisting(o, machine)
	if err != nil {
		return nil, err
	}
	return r, errors.Join(r.read(s, machine), s.Log.Close())
}

// existing returns the options for reading the directory of a stopped server.
func existing(dir string, logger *slog.Logger) disk.Options {
	return disk.Options{
		Dir: dir, WriteTimeout: group.Timeouts{}.WithDefaults().DiskWrite, Reserve: -1, Logger: logger,
		Fatal: func(error) {},
	}
}

// openExisting opens the log, of either kind, and reads the newest snapshot into the machine.
func openExisting(o *disk.Options, machine *fsm.FSM) (*disk.Storage, error) {
	kind, err := disk.LogKind(o.Dir)
	if err != nil {
		return nil, err
	}
	o.LogStore = string(kind)
	return disk.Open(o, machine)
}

func (r *Report) marks(o *disk.Options) (err error) {
	if r.Quarantined, err = disk.ReadQuarantine(o.Dir, ""); err != nil {
		return err
	}
	if r.Superseded, err = disk.ReadSuperseded(o, r.ClusterID); err != nil {
		return err
	}
	var removed *group.RemovedError
	switch err := disk.CheckNotRemoved(o, ""); {
	case errors.As(err, &removed):
		r.Removed = &removed.Removal
		return nil
	default:
		return err
	}
}

// read applies the log behind the snapshot that the machine has.
func (r *Report) read(s *disk.Storage, machine *fsm.FSM) error {
	var members raft.Configuration
	list, err := s.Snapshots.List()
	if err != nil {
		return fmt.Errorf("list the snapshots in %s: %w", r.Dir, err)
	}
	if len(list) > 0 {
		members, r.SnapshotIndex, r.LastTerm = list[0].Configuration, list[0].Index, list[0].Term
	}
	// Raft's own words
	if r.Term, err = s.Log.GetUint64([]byte("CurrentTerm")); err != nil && err.Error() != "not found" {
		return fmt.Errorf("read the term in %s: %w", r.Dir, err)
	}
	last, err := s.Log.LastIndex()
	if err != nil {
		return fmt.Errorf("read the log in %s: %w", r.Dir, err)
	}
	r.LastIndex = r.SnapshotIndex
	for index := r.SnapshotIndex + 1; index <= last; index++ {
		var entry raft.Log
		if err := s.Log.GetLog(index, &entry); err != nil {
			return fmt.Errorf("%s cannot be read from entry %d of its log on, of %d: %w", r.Dir, index, last, err)
		}
		if entry.Type == raft.LogConfiguration {
			members = raft.DecodeConfiguration(entry.Data)
		}
		if response := machine.Apply(&entry).(*fsm.Response); response.Err != nil {
			return fmt.Errorf("%s: %w", r.Dir, response.Err)
		}
		r.LastIndex, r.LastTerm = entry.Index, entry.Term
	}
	view := machine.State().Latest()
	r.Revision, r.Keys, r.StateHash = view.Revision(), view.Len(), fmt.Sprintf("%016x", view.Hash())
	r.Predecessors = group.Predecessors(view)
	for _, m := range members.Servers {
		r.Members = append(r.Members, group.Member{
			ID: string(m.ID), Name: group.NameOf(string(m.ID)), Address: string(m.Address),
			Voter: m.Suffrage == raft.Voter, Self: string(m.ID) == r.ServerID,
		})
	}
	return nil
}

// Superseded returns the successor of a directory's cluster, as recorded by its server; nil without
// one. It takes no lock: the server may run.
func Superseded(dir string) (*group.Succession, error) {
	o := &disk.Options{Dir: dir}
	id, err := disk.OpenIdentity(o, disk.Owner{})
	if err != nil {
		return nil, err
	}
	return disk.ReadSuperseded(o, id.ClusterID)
}

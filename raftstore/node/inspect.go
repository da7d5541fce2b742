package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/fsm"
	"github.com/barque/barque/raftstore/logstore"
	"github.com/barque/barque/raftstore/mvcc"
)

// Report is what the directory of a server that does not run knows.
type Report struct {
	Dir       string `json:"dir"`
	ServerID  string `json:"serverID"`
	ClusterID string `json:"clusterID"`

	// Term is the newest in which the server took part. LastTerm and LastIndex are of the newest
	// entry that it has: whose are higher has more of what was written.
	Term      uint64 `json:"term"`
	LastTerm  uint64 `json:"lastTerm"`
	LastIndex uint64 `json:"lastIndex"`
	// SnapshotIndex is the last entry in the newest snapshot that is whole; 0 when there is none.
	SnapshotIndex uint64 `json:"snapshotIndex"`
	// Revision, Keys and StateHash are of the state with all these entries. Whether the last of
	// them were ever acknowledged is not known to one server.
	Revision  uint64 `json:"revision"`
	Keys      int    `json:"keys"`
	StateHash string `json:"stateHash"`
	// Members is the newest configuration of the group that the server has heard of.
	Members []Member `json:"members"`

	Quarantined string   `json:"quarantined,omitempty"` // why its state is known to be wrong
	Removed     *Removal `json:"removed,omitempty"`     // it was taken out of the group
	// Superseded is there when the server has learned that another cluster goes on in place of its
	// own. Predecessors are the clusters in whose place its own goes on.
	Superseded   *Succession  `json:"superseded,omitempty"`
	Predecessors []Succession `json:"predecessors,omitempty"`
}

// Newer tells whether the one directory has more of the log than the other one.
func (r *Report) Newer(other *Report) bool {
	if r.LastTerm != other.LastTerm {
		return r.LastTerm > other.LastTerm
	}
	return r.LastIndex > other.LastIndex
}

// Inspect reads the directory of a server that does not run. It changes nothing in it that matters
// to the server.
func Inspect(dir string, logger *slog.Logger) (*Report, error) {
	cfg := Config{Dir: dir, Logger: logger}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	lock, err := lockExisting(&cfg)
	if err != nil {
		return nil, err
	}
	r, err := inspect(&cfg)
	if err = errors.Join(err, lock.release()); err != nil {
		return nil, err
	}
	return r, nil
}

func inspect(cfg *Config) (*Report, error) {
	id, err := openIdentity(cfg)
	if err != nil {
		return nil, err
	}
	r := &Report{Dir: cfg.Dir, ServerID: id.ServerID, ClusterID: id.ClusterID}
	if err := r.marks(cfg); err != nil {
		return nil, err
	}
	machine := fsm.New(mvcc.New(mvcc.Limits{}), func(error) {})
	s, err := openExisting(cfg, machine)
	if err != nil {
		return nil, err
	}
	return r, errors.Join(r.read(s, machine), s.log.Close())
}

// lockExisting takes hold of the directory of a server, and makes none.
func lockExisting(cfg *Config) (dirLock, error) {
	if _, err := os.Stat(filepath.Join(cfg.Dir, identityFile)); err != nil {
		return dirLock{}, fmt.Errorf("%s is not the directory of a server's store: %w", cfg.Dir, err)
	}
	return lockDir(cfg)
}

// openExisting opens the log, of whichever kind it is, and reads the newest snapshot into the
// machine.
func openExisting(cfg *Config, machine *fsm.FSM) (*storage, error) {
	kind, err := logstore.KindIn(filepath.Join(cfg.Dir, logDir))
	if err != nil {
		return nil, err
	}
	cfg.LogStore = string(kind)
	cfg.Timeouts = cfg.Timeouts.withDefaults()
	cfg.DiskReserve = -1
	return openStorage(cfg, machine, newMetrics(nil), func(error) {})
}

func (r *Report) marks(cfg *Config) error {
	q, err := openQuarantine(cfg)
	if err != nil {
		return err
	}
	r.Quarantined = q.why()
	if r.Superseded, err = readSuperseded(cfg, r.ClusterID); err != nil {
		return err
	}
	var removed *RemovedError
	switch err := checkNotRemoved(cfg); {
	case errors.As(err, &removed):
		r.Removed = &removed.Removal
		return nil
	default:
		return err
	}
}

// read applies the log behind the snapshot that the machine has.
func (r *Report) read(s *storage, machine *fsm.FSM) error {
	var members raft.Configuration
	list, err := s.snapshots.List()
	if err != nil {
		return fmt.Errorf("list the snapshots in %s: %w", r.Dir, err)
	}
	if len(list) > 0 {
		members, r.SnapshotIndex, r.LastTerm = list[0].Configuration, list[0].Index, list[0].Term
	}
	if r.Term, err = s.log.GetUint64([]byte("CurrentTerm")); err != nil && err.Error() != "not found" { // Raft's own words
		return fmt.Errorf("read the term in %s: %w", r.Dir, err)
	}
	last, err := s.log.LastIndex()
	if err != nil {
		return fmt.Errorf("read the log in %s: %w", r.Dir, err)
	}
	r.LastIndex = r.SnapshotIndex
	for index := r.SnapshotIndex + 1; index <= last; index++ {
		var entry raft.Log
		if err := s.log.GetLog(index, &entry); err != nil {
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
	r.Predecessors = predecessors(view)
	for _, m := range members.Servers {
		r.Members = append(r.Members, Member{
			ID: string(m.ID), Name: nameOf(string(m.ID)), Address: string(m.Address), Voter: m.Suffrage == raft.Voter, Self: string(m.ID) == r.ServerID,
		})
	}
	return nil
}

// recovery is the mark of a directory whose group is being made anew: see Recover.
type recovery struct {
	ClusterID string `json:"clusterID"`
}

const recoveryFile = "recovery.json"

// checkNotRecovering refuses a directory whose recovery was begun and not finished.
func checkNotRecovering(cfg *Config) error {
	r, err := readRecovery(cfg)
	if err == nil && r != nil {
		err = fmt.Errorf("%s is in the middle of a recovery: finish it first, with the same command", cfg.Dir)
	}
	return err
}

func readRecovery(cfg *Config) (*recovery, error) {
	if cfg.InMemory {
		return nil, nil
	}
	data, err := os.ReadFile(filepath.Join(cfg.Dir, recoveryFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read whether a recovery is under way: %w", err)
	}
	r := new(recovery)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", filepath.Join(cfg.Dir, recoveryFile), err)
	}
	return r, nil
}

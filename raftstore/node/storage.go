package node

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/fsm"
	"github.com/barque/barque/raftstore/logstore"
	"github.com/barque/barque/raftstore/snapdir"
)

const (
	// logDir and snapshotDir are where, below the data directory, the log and the snapshots are.
	logDir      = "log"
	snapshotDir = "snapshots"
	// keptSnapshots is how many snapshots stay on disk.
	keptSnapshots = 2
)

// storage is everything that a server keeps.
type storage struct {
	log       *logstore.Log
	written   *snapdir.Store     // where snapshots are written to; nil in memory
	snapshots raft.SnapshotStore // without those that could not be read at the start
	reserve   *reserve
	start     Start
	severed   atomic.Uint64 // up to where the log was not of this history: see sever
}

// Start is what a server read when it was opened.
type Start struct {
	// Snapshot is the newest entry in the snapshot that was read, SnapshotRevision the revision of
	// the state in it; 0 when there is none.
	Snapshot         uint64 `json:"snapshot,omitempty"`
	SnapshotRevision uint64 `json:"snapshotRevision,omitempty"`
	// SnapshotPath is where it is, and SnapshotTaken when it was written.
	SnapshotPath  string    `json:"snapshotPath,omitempty"`
	SnapshotTaken time.Time `json:"snapshotTaken,omitzero"`
	// Damaged are newer snapshots that could not be read. The log still had what they held.
	Damaged []string `json:"damaged,omitempty"`
	// Log is what was found of the log. Its entries behind the snapshot are applied once it is
	// known again that they were committed: Replayed of them, when all were.
	Log      logstore.Report `json:"log"`
	Replayed uint64          `json:"replayed"`
	// Took is how long reading all of this took.
	Took time.Duration `json:"took"`
}

// openStorage reads the newest snapshot that is whole into the state machine, and opens the log
// behind it.
func openStorage(cfg *Config, machine *fsm.FSM, stats *metrics, fatal func(error)) (*storage, error) {
	began := time.Now()
	kind, err := logstore.ParseKind(cfg.LogStore)
	if err != nil {
		return nil, err
	}
	s := new(storage)
	if s.reserve, err = openReserve(cfg); err != nil {
		return nil, err
	}
	if err := s.openSnapshots(cfg); err != nil {
		return nil, err
	}
	if err := s.restore(cfg.Logger, machine); err != nil {
		return nil, err
	}
	opts := logstore.Options{
		Kind: kind, Covered: s.start.Snapshot, Timeout: cfg.Timeouts.DiskWrite, Observe: stats.observeLog, Fatal: fatal, MakeRoom: s.makeRoom,
		Logger: cfg.Logger, Wrap: cfg.WrapLog, Fault: cfg.FaultPoint,
	}
	if !cfg.InMemory {
		opts.Dir, opts.Floor = filepath.Join(cfg.Dir, logDir), s.floor
	}
	if s.log, err = logstore.Open(opts); err != nil {
		if len(s.start.Damaged) > 0 {
			err = fmt.Errorf("%w (before that, these snapshots were found to be damaged: %q)", err, s.start.Damaged)
		}
		return nil, err
	}
	s.start.Log = s.log.Report()
	if last := s.start.Log.Last; last > s.start.Snapshot {
		s.start.Replayed = last - max(s.start.Snapshot, s.start.Log.First-1)
	}
	s.start.Took = time.Since(began)
	s.start.tell(cfg.Logger)
	return s, nil
}

// floor returns up to which entry the log may be cut: where the oldest snapshot ends, so that the
// log connects to each that is kept, also when the newer ones turn out to be damaged. A disk that
// is full has no room for that.
func (s *storage) floor() uint64 {
	if s.reserve.exhausted() {
		return math.MaxUint64
	}
	all, err := s.snapshots.List()
	if err != nil || len(all) < keptSnapshots {
		return s.severed.Load()
	}
	return max(all[keptSnapshots-1].Index, s.severed.Load())
}

// termAt returns the term of the newest entry, or 0 when it cannot be read. When the log was
// dropped or cut as far as the newest snapshot goes, only that knows it.
func (s *storage) termAt(newest uint64) uint64 {
	var entry raft.Log
	if s.log.GetLog(newest, &entry) == nil {
		return entry.Term
	}
	all, err := s.snapshots.List()
	if err != nil {
		return 0
	}
	for _, m := range all {
		if m.Index == newest {
			return m.Term
		}
	}
	return 0
}

// makeRoom gives the log what is held in reserve, or else what a snapshot takes that is being
// written. It returns whether there is more room now.
func (s *storage) makeRoom() bool {
	return s.reserve.release() || s.written != nil && s.written.Abandon()
}

// sever raises the floor: the log up to the entry contradicts a snapshot, so it does not lead from
// an older one to it.
func (s *storage) sever(index uint64) { s.severed.Store(max(index, s.severed.Load())) }

func (s *storage) openSnapshots(cfg *Config) error {
	if cfg.InMemory {
		s.snapshots = raft.NewInmemSnapshotStore()
	} else {
		dir, err := snapdir.Open(snapdir.Options{
			Dir: filepath.Join(cfg.Dir, snapshotDir), Keep: keptSnapshots, Logger: cfg.Logger, Fault: cfg.FaultPoint,
			Done: func(index uint64) error { return s.log.Snapshotted(index) },
			Full: func() { s.reserve.release() },
		})
		if err != nil {
			return err
		}
		s.snapshots, s.written = dir, dir
	}
	if cfg.WrapSnapshots != nil {
		s.snapshots = cfg.WrapSnapshots(s.snapshots)
	}
	return nil
}

// restore reads the newest snapshot that is whole, all of which is verified on the way. That an
// older one does is for the log to say: it must go on where the snapshot ends.
func (s *storage) restore(logger *slog.Logger, machine *fsm.FSM) error {
	all, err := s.snapshots.List()
	if err != nil {
		return fmt.Errorf("list the snapshots: %w", err)
	}
	readable := &readableSnapshots{SnapshotStore: s.snapshots, hidden: make(map[string]bool)}
	defer func() { s.snapshots = readable }()
	for _, meta := range all {
		path := meta.ID
		if s.written != nil {
			path = s.written.Path(meta.ID)
		}
		err := restoreOne(s.snapshots, machine, meta.ID)
		if err == nil {
			s.start.Snapshot, s.start.SnapshotRevision = meta.Index, machine.State().Revision()
			s.start.SnapshotPath, s.start.SnapshotTaken = path, taken(meta.ID)
			return nil
		}
		if !snapdir.Damaged(err) {
			return fmt.Errorf("read the snapshot %s: %w", path, err)
		}
		logger.Error("a snapshot cannot be read, the one before is tried", "snapshot", path, "index", meta.Index, "err", err)
		s.start.Damaged = append(s.start.Damaged, path)
		readable.hidden[meta.ID] = true
		if s.written != nil {
			s.written.SetAside(meta.ID, err)
		}
	}
	return nil
}

func restoreOne(snapshots raft.SnapshotStore, machine *fsm.FSM, id string) error {
	_, source, err := snapshots.Open(id)
	if err != nil {
		return err
	}
	return machine.Restore(source) // which closes it
}

// taken returns when a snapshot was begun, which its name tells.
func taken(id string) time.Time {
	var term, index uint64
	var ms int64
	if n, _ := fmt.Sscanf(id, "%d-%d-%d", &term, &index, &ms); n < 3 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// readableSnapshots hides the snapshots that could not be read: Raft believes that the newest that
// it sees is the one that the state machine has.
type readableSnapshots struct {
	raft.SnapshotStore
	hidden map[string]bool
}

// List implements raft.SnapshotStore.
func (r *readableSnapshots) List() ([]*raft.SnapshotMeta, error) {
	all, err := r.SnapshotStore.List()
	var shown []*raft.SnapshotMeta
	for _, meta := range all {
		if !r.hidden[meta.ID] {
			shown = append(shown, meta)
		}
	}
	return shown, err
}

// tell says in one line what was read.
func (s *Start) tell(logger *slog.Logger) {
	args := []any{
		"log", s.Log.Kind, "entries", fmt.Sprintf("%d-%d", s.Log.First, s.Log.Last), "logBytes", s.Log.Bytes, "took", s.Took.Round(time.Millisecond),
	}
	if s.Snapshot > 0 {
		args = append(args, "snapshot", s.SnapshotPath, "snapshotIndex", s.Snapshot, "snapshotRevision", s.SnapshotRevision, "snapshotTaken", s.SnapshotTaken)
	}
	args = append(args, "replay", s.Replayed)
	for name, n := range map[string]uint64{"droppedEntries": s.Log.Dropped, "unacknowledgedEntries": s.Log.Unpromised} {
		if n > 0 {
			args = append(args, name, n)
		}
	}
	if s.Log.ConvertedFrom != "" {
		args = append(args, "convertedFrom", s.Log.ConvertedFrom)
	}
	level := slog.LevelInfo
	if len(s.Damaged) > 0 {
		level, args = slog.LevelWarn, append(args, "damagedSnapshots", s.Damaged)
	}
	if s.Log.Unguarded {
		level, args = slog.LevelWarn, append(args, "unguarded", "the record of what the log had promised is missing: a lost end would not have been noticed")
	}
	logger.Log(context.Background(), level, "read what this server had on disk", args...)
}

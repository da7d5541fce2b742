package disk

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
	// LogDir and snapshotDir are where, below the data directory, the log and the snapshots are.
	LogDir      = "log"
	snapshotDir = "snapshots"
	// keptSnapshots is how many snapshots stay on disk.
	keptSnapshots = 2
)

// Storage is everything that a server keeps.
type Storage struct {
	Log       *logstore.Log
	written   *snapdir.Store     // where snapshots are written to; nil in memory
	Snapshots raft.SnapshotStore // without those that were unreadable at the start
	Reserve   *Reserve
	Start     Start
	Opened    time.Time // once all was read
	logger    *slog.Logger
	trailing  uint64        // entries that stay behind a snapshot
	severed   atomic.Uint64 // up to where the log was not of this history: see sever
}

// Start describes the data that a server read when it was opened.
type Start struct {
	// Snapshot is the newest entry in the snapshot that was read, SnapshotRevision the revision of
	// its state; 0 without one.
	Snapshot         uint64 `json:"snapshot,omitempty"`
	SnapshotRevision uint64 `json:"snapshotRevision,omitempty"`
	// SnapshotPath is where it is, and SnapshotTaken when it was written.
	SnapshotPath  string    `json:"snapshotPath,omitempty"`
	SnapshotTaken time.Time `json:"snapshotTaken,omitzero"`
	// Damaged are newer snapshots that were unreadable. The log still had their entries.
	Damaged []string `json:"damaged,omitempty"`
	// Log is the report on the log. Its entries after the snapshot are applied once they are known
	// to be committed again. Replayed is their number, when all were applied.
	Log      logstore.Report `json:"log"`
	Replayed uint64          `json:"replayed"`
	// Took is how long reading all of this took.
	Took time.Duration `json:"took"`
}

// Open reads the newest snapshot that is whole into the state machine, and opens the log
// behind it.
func Open(o *Options, machine *fsm.FSM) (*Storage, error) {
	began := time.Now()
	kind, err := logstore.ParseKind(o.LogStore)
	if err != nil {
		return nil, err
	}
	s := &Storage{Opened: began, logger: o.Logger, trailing: o.TrailingLogs}
	if s.Reserve, err = openReserve(o); err != nil {
		return nil, err
	}
	if err := s.openSnapshots(o); err != nil {
		return nil, err
	}
	if err := s.restore(o.Logger, machine); err != nil {
		return nil, err
	}
	opts := logstore.Options{
		Kind: kind, Covered: s.Start.Snapshot, Timeout: o.WriteTimeout, Extension: o.Extension, Observe: o.Observe,
		Fatal: o.Fatal, MakeRoom: s.makeRoom,
		Logger: o.Logger, Wrap: o.WrapLog, Fault: o.FaultPoint,
	}
	if !o.InMemory {
		opts.Dir, opts.Floor = filepath.Join(o.Dir, LogDir), s.floor
	}
	if s.Log, err = logstore.Open(opts); err != nil {
		if len(s.Start.Damaged) > 0 {
			err = fmt.Errorf("%w (before that, these snapshots were found to be damaged: %q)", err, s.Start.Damaged)
		}
		return nil, err
	}
	s.Start.Log = s.Log.Report()
	if last := s.Start.Log.Last; last > s.Start.Snapshot {
		s.Start.Replayed = last - max(s.Start.Snapshot, s.Start.Log.First-1)
	}
	s.Start.Took = time.Since(began)
	s.Start.tell(o.Logger)
	return s, nil
}

// floor returns the entry up to which the log may be cut: the end of the oldest snapshot. So the
// log connects to each kept snapshot, also if the newer ones turn out to be damaged. A full disk
// has no space for that.
func (s *Storage) floor() uint64 {
	if s.Reserve.Full.Load() {
		return math.MaxUint64
	}
	all, err := s.Snapshots.List()
	if err != nil || len(all) < keptSnapshots {
		return s.severed.Load()
	}
	return max(all[keptSnapshots-1].Index, s.severed.Load())
}

// TermAt returns the term of the newest entry, or 0 if it is unreadable. If the log was dropped or
// cut up to the newest snapshot, only the snapshot has the term.
func (s *Storage) TermAt(newest uint64) uint64 {
	var entry raft.Log
	if s.Log.GetLog(newest, &entry) == nil {
		return entry.Term
	}
	all, err := s.Snapshots.List()
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

// makeRoom gives the log the reserve, or the space of a snapshot in progress. It returns whether
// there is more space now.
func (s *Storage) makeRoom() bool {
	return s.Reserve.Release() || s.written != nil && s.written.Abandon()
}

// Sever raises the floor: the log up to the entry contradicts a snapshot, so it does not lead from
// an older one to it.
func (s *Storage) Sever(index uint64) { s.severed.Store(max(index, s.severed.Load())) }

// SetAside removes a snapshot on disk from the list.
func (s *Storage) SetAside(id string, why error) error { return s.written.SetAside(id, why) }

// openSnapshots opens the snapshots in a data directory. done is called for each written one, full
// if there was no space for one; nil: unused.
func openSnapshots(o *Options, done func(index uint64) error, full func()) (*snapdir.Store, error) {
	return snapdir.Open(snapdir.Options{
		Dir: filepath.Join(o.Dir, snapshotDir), Keep: keptSnapshots, Logger: o.Logger, Fault: o.FaultPoint, Done: done,
		Full: full,
	})
}

func (s *Storage) openSnapshots(o *Options) error {
	if o.InMemory {
		s.Snapshots = raft.NewInmemSnapshotStore()
	} else {
		dir, err := openSnapshots(o, func(index uint64) error { return s.Log.Snapshotted(index) },
			func() { s.Reserve.Release() })
		if err != nil {
			return err
		}
		s.Snapshots, s.written = dir, dir
	}
	if o.WrapSnapshots != nil {
		s.Snapshots = o.WrapSnapshots(s.Snapshots)
	}
	return nil
}

// restore reads and verifies the newest complete snapshot. The log decides whether an older one is
// sufficient: it must continue at the end of the snapshot.
func (s *Storage) restore(logger *slog.Logger, machine *fsm.FSM) error {
	all, err := s.Snapshots.List()
	if err != nil {
		return fmt.Errorf("list the snapshots: %w", err)
	}
	readable := &readableSnapshots{SnapshotStore: s.Snapshots, hidden: make(map[string]bool)}
	defer func() { s.Snapshots = readable }()
	for _, meta := range all {
		path := meta.ID
		if s.written != nil {
			path = s.written.Path(meta.ID)
		}
		err := restoreOne(s.Snapshots, machine, meta.ID)
		if err == nil {
			s.Start.Snapshot, s.Start.SnapshotRevision = meta.Index, machine.State().Revision()
			s.Start.SnapshotPath, s.Start.SnapshotTaken = path, taken(meta.ID)
			return nil
		}
		if !snapdir.Damaged(err) {
			return fmt.Errorf("read the snapshot %s: %w", path, err)
		}
		logger.Error("a snapshot cannot be read, the one before is tried", "snapshot", path, "index", meta.Index, "err",
			err)
		s.Start.Damaged = append(s.Start.Damaged, path)
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

// taken returns the time in a snapshot's name, at which it was begun.
func taken(id string) time.Time {
	var term, index uint64
	var ms int64
	if n, _ := fmt.Sscanf(id, "%d-%d-%d", &term, &index, &ms); n < 3 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// readableSnapshots hides unreadable snapshots: Raft takes the newest visible one for that of the
// state machine.
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

// tell logs the log and the snapshot that were read, in one line.
func (s *Start) tell(logger *slog.Logger) {
	args := []any{
		"log", s.Log.Kind, "entries", fmt.Sprintf("%d-%d", s.Log.First, s.Log.Last), "logBytes", s.Log.Bytes, "took",
		s.Took.Round(time.Millisecond),
	}
	if s.Snapshot > 0 {
		args = append(args, "snapshot", s.SnapshotPath, "snapshotIndex", s.Snapshot, "snapshotRevision",
			s.SnapshotRevision, "snapshotTaken", s.SnapshotTaken)
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
		level, args = slog.LevelWarn,
			append(args, "unguarded",
				"the record of what the log had promised is missing: a lost end would not have been noticed")
	}
	logger.Log(context.Background(), level, "read what this server had on disk", args...)
}

package status

import (
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/mvcc"
)

// Members takes note of the configurations of the group that are applied.
type Members interface {
	Note(entries []*raft.Log)
	Load(snapshots raft.SnapshotStore) error
}

// Machine adds a clock and a log to the state machine, which has none.
type Machine struct {
	raft.BatchingFSM
	stats     *Metrics
	logger    *slog.Logger
	state     *mvcc.Store
	members   Members
	snapshots raft.SnapshotStore
	known     uint64      // the end of the log when it was opened: earlier entries are not news
	restoring atomic.Bool // a snapshot of the leader is being read
}

// NewMachine returns the state machine for Raft. known is the end of the log when it was opened.
func NewMachine(
	inner raft.BatchingFSM, state *mvcc.Store, members Members, snapshots raft.SnapshotStore, known uint64,
	stats *Metrics, logger *slog.Logger,
) *Machine {
	return &Machine{BatchingFSM: inner, stats: stats, logger: logger, state: state, members: members,
		snapshots: snapshots, known: known}
}

// Restoring reports whether a snapshot of the leader is being read.
func (m *Machine) Restoring() bool { return m.restoring.Load() }

// ApplyBatch implements raft.BatchingFSM.
func (m *Machine) ApplyBatch(logs []*raft.Log) []any {
	began := time.Now()
	m.members.Note(logs)
	responses := m.BatchingFSM.ApplyBatch(logs)
	m.stats.apply.Observe(time.Since(began).Seconds())
	m.stats.applied.Add(float64(len(logs)))
	for _, entry := range logs {
		if entry.Type == raft.LogConfiguration && entry.Index > m.known {
			m.logMembers(entry)
		}
	}
	return responses
}

// logMembers logs the new configuration of the members.
func (m *Machine) logMembers(entry *raft.Log) {
	var voters, others []string
	for _, s := range raft.DecodeConfiguration(entry.Data).Servers {
		who := fmt.Sprintf("%s (%s)", s.ID, s.Address)
		if s.Suffrage == raft.Voter {
			voters = append(voters, who)
		} else {
			others = append(others, who)
		}
	}
	m.logger.Info("the members have changed", "voters", voters, "withoutVote", others, "index", entry.Index)
}

// Snapshot implements raft.FSM.
func (m *Machine) Snapshot() (raft.FSMSnapshot, error) {
	snapshot, err := m.BatchingFSM.Snapshot()
	if err != nil {
		return nil, err
	}
	return &measuredSnapshot{snapshot, m.stats, m.logger}, nil
}

// Restore implements raft.FSM.
func (m *Machine) Restore(rc io.ReadCloser) error {
	m.restoring.Store(true)
	defer m.restoring.Store(false)
	began, before := time.Now(), m.state.Revision()
	err := m.BatchingFSM.Restore(rc)
	took := time.Since(began).Round(time.Millisecond)
	if err != nil {
		m.logger.Error("a snapshot of the leader could not be read", "err", err, "took", took)
	} else {
		if err := m.members.Load(m.snapshots); err != nil { // of the snapshot just read: it is the newest
			m.logger.Warn("who the members are is not known until they change", "err", err)
		}
		m.stats.restored.Inc()
		m.logger.Info("this server was too far behind for the leader's log and took its snapshot", "revision",
			m.state.Revision(), "before", before, "took", took)
	}
	return err
}

// measuredSnapshot is a snapshot that is about to be written.
type measuredSnapshot struct {
	raft.FSMSnapshot
	stats  *Metrics
	logger *slog.Logger
}

// Persist implements raft.FSMSnapshot.
func (p *measuredSnapshot) Persist(sink raft.SnapshotSink) error {
	began, counting := time.Now(), &countingSink{SnapshotSink: sink}
	err := p.FSMSnapshot.Persist(counting)
	took := time.Since(began)
	p.stats.wroteSnapshot(took, counting.bytes, err)
	if err != nil {
		p.logger.Warn("a snapshot could not be written; it is tried again", "snapshot", sink.ID(), "err", err)
	} else {
		p.logger.Info("a snapshot was written", "snapshot", sink.ID(), "bytes", counting.bytes, "took",
			took.Round(time.Millisecond))
	}
	return err
}

type countingSink struct {
	raft.SnapshotSink
	bytes int64
}

// Write implements io.Writer.
func (s *countingSink) Write(b []byte) (int, error) {
	n, err := s.SnapshotSink.Write(b)
	s.bytes += int64(n)
	return n, err
}

package node

import (
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/mvcc"
)

// measured is the state machine, with a clock and a log beside it: it has none itself.
type measured struct {
	raft.BatchingFSM
	stats     *metrics
	logger    *slog.Logger
	state     *mvcc.Store
	members   *committed
	snapshots raft.SnapshotStore
	known     uint64      // the end of the log when it was opened: what is before is no news
	restoring atomic.Bool // a snapshot of the leader is being read
}

// ApplyBatch implements raft.BatchingFSM.
func (m *measured) ApplyBatch(logs []*raft.Log) []any {
	began := time.Now()
	m.members.note(logs)
	responses := m.BatchingFSM.ApplyBatch(logs)
	m.stats.apply.Observe(time.Since(began).Seconds())
	m.stats.applied.Add(float64(len(logs)))
	for _, entry := range logs {
		if entry.Type == raft.LogConfiguration && entry.Index > m.known {
			m.tellMembers(entry)
		}
	}
	return responses
}

// tellMembers says who the members are from now on.
func (m *measured) tellMembers(entry *raft.Log) {
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
func (m *measured) Snapshot() (raft.FSMSnapshot, error) {
	picture, err := m.BatchingFSM.Snapshot()
	if err != nil {
		return nil, err
	}
	return &measuredPicture{picture, m.stats, m.logger}, nil
}

// Restore implements raft.FSM.
func (m *measured) Restore(rc io.ReadCloser) error {
	m.restoring.Store(true)
	defer m.restoring.Store(false)
	began, before := time.Now(), m.state.Revision()
	err := m.BatchingFSM.Restore(rc)
	took := time.Since(began).Round(time.Millisecond)
	if err != nil {
		m.logger.Error("a snapshot of the leader could not be read", "err", err, "took", took)
	} else {
		if err := m.members.load(m.snapshots); err != nil { // of the one that was just read: it is the newest
			m.logger.Warn("who the members are is not known until they change", "err", err)
		}
		m.stats.restored.Inc()
		m.logger.Info("this server was too far behind for the leader's log and took its snapshot", "revision", m.state.Revision(), "before", before, "took", took)
	}
	return err
}

// measuredPicture is a snapshot that is about to be written.
type measuredPicture struct {
	raft.FSMSnapshot
	stats  *metrics
	logger *slog.Logger
}

// Persist implements raft.FSMSnapshot.
func (p *measuredPicture) Persist(sink raft.SnapshotSink) error {
	began, counting := time.Now(), &countingSink{SnapshotSink: sink}
	err := p.FSMSnapshot.Persist(counting)
	took := time.Since(began)
	p.stats.wroteSnapshot(took, counting.bytes, err)
	if err != nil {
		p.logger.Warn("a snapshot could not be written; it is tried again", "snapshot", sink.ID(), "err", err)
	} else {
		p.logger.Info("a snapshot was written", "snapshot", sink.ID(), "bytes", counting.bytes, "took", took.Round(time.Millisecond))
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

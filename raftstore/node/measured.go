package node

import (
	"io"
	"time"

	"github.com/hashicorp/raft"
)

// measured is the state machine, with a clock beside it: it has none itself.
type measured struct {
	raft.BatchingFSM
	stats *metrics
}

// ApplyBatch implements raft.BatchingFSM.
func (m *measured) ApplyBatch(logs []*raft.Log) []any {
	began := time.Now()
	responses := m.BatchingFSM.ApplyBatch(logs)
	m.stats.apply.Observe(time.Since(began).Seconds())
	m.stats.applied.Add(float64(len(logs)))
	return responses
}

// Snapshot implements raft.FSM.
func (m *measured) Snapshot() (raft.FSMSnapshot, error) {
	picture, err := m.BatchingFSM.Snapshot()
	if err != nil {
		return nil, err
	}
	return &measuredPicture{picture, m.stats}, nil
}

// Restore implements raft.FSM.
func (m *measured) Restore(rc io.ReadCloser) error {
	err := m.BatchingFSM.Restore(rc)
	if err == nil {
		m.stats.restored.Inc()
	}
	return err
}

// measuredPicture is a snapshot that is about to be written.
type measuredPicture struct {
	raft.FSMSnapshot
	stats *metrics
}

// Persist implements raft.FSMSnapshot.
func (p *measuredPicture) Persist(sink raft.SnapshotSink) error {
	began, counting := time.Now(), &countingSink{SnapshotSink: sink}
	err := p.FSMSnapshot.Persist(counting)
	p.stats.wroteSnapshot(time.Since(began), counting.bytes, err)
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

// countElections counts from now on how often Raft makes this server a candidate.
func (n *Node) countElections() {
	n.raft.RegisterObserver(raft.NewObserver(nil, false, func(o *raft.Observation) bool {
		if state, ok := o.Data.(raft.RaftState); ok && state == raft.Candidate {
			n.stats.elections.Inc()
		}
		return false // there is nobody to tell
	}))
}

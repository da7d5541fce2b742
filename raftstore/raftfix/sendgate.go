package raftfix

import (
	"io"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/logstore"
)

// sendGate is Raft's transport. While the disk hangs it sends nothing that keeps this server the
// leader or makes it one: no heartbeat, no other message that followers take for one, and no
// request for a vote. Raft sees a failed network. Answers to others pass.
//
// Raft's heartbeats have their own goroutine, which does not wait for the disk: a leader that can
// write nothing would stay leader. The tests of package raftfix hang disks.
type sendGate struct {
	Transport
	disk *logstore.Watchdog
}

// SendGate returns a transport that is silent while the disk hangs.
func SendGate(inner Transport, disk *logstore.Watchdog) Transport { return &sendGate{inner, disk} }

// AppendEntries implements raft.Transport.
func (g *sendGate) AppendEntries(
	id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	if err := g.disk.Check(); err != nil {
		return err
	}
	return g.Transport.AppendEntries(id, target, args, resp)
}

// AppendEntriesPipeline implements raft.Transport.
func (g *sendGate) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	if err := g.disk.Check(); err != nil {
		return nil, err
	}
	inner, err := g.Transport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return &gatedPipeline{inner, g.disk}, nil
}

// InstallSnapshot implements raft.Transport.
func (g *sendGate) InstallSnapshot(
	id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse,
	data io.Reader,
) error {
	if err := g.disk.Check(); err != nil {
		return err
	}
	return g.Transport.InstallSnapshot(id, target, args, resp, data)
}

// RequestVote implements raft.Transport.
func (g *sendGate) RequestVote(
	id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse,
) error {
	if err := g.disk.Check(); err != nil {
		return err
	}
	return g.Transport.RequestVote(id, target, args, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (g *sendGate) RequestPreVote(
	id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse,
) error {
	if err := g.disk.Check(); err != nil {
		return err
	}
	return g.Transport.RequestPreVote(id, target, args, resp)
}

// gatedPipeline is a pipeline, over which Raft sends empty messages while it has no others.
type gatedPipeline struct {
	raft.AppendPipeline
	disk *logstore.Watchdog
}

// AppendEntries implements raft.AppendPipeline.
func (p *gatedPipeline) AppendEntries(
	args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) (raft.AppendFuture, error) {
	if err := p.disk.Check(); err != nil {
		return nil, err
	}
	return p.AppendPipeline.AppendEntries(args, resp)
}

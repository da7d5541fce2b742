package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/autopilot"
	"github.com/barque/barque/raftstore/fsm"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/status"
)

// wiring is the server in the view of its parts: each declares the interface that it needs.
type wiring struct{ *Node }

// CommitIndex implements integrity.Server.
func (w wiring) CommitIndex() uint64 { return w.raft.CommitIndex() }

// AwaitApplied implements integrity.Server.
func (w wiring) AwaitApplied(ctx context.Context, index uint64) error {
	return w.fsm.Waiter().Wait(ctx, index)
}

// Tell implements integrity.Server.
func (w wiring) Tell(ctx context.Context, m group.Member, kind byte, message any) ([]byte, error) {
	return w.peers.Tell(ctx, m, kind, message)
}

// TellLeader implements integrity.Server.
func (w wiring) TellLeader(ctx context.Context, kind byte, message any) error {
	leader, local, err := w.leaderAt()
	if err == nil && local {
		err = errors.New("this server leads itself at the moment")
	}
	if err == nil {
		_, err = w.peers.TellAt(ctx, leader, kind, message)
	}
	return err
}

// Leads implements integrity.Server.
func (w wiring) Leads() bool { return w.raft.State() == raft.Leader }

// StepDown implements integrity.Server.
func (w wiring) StepDown(cause error) { w.leader.Depose(cause) }

// HandOver implements integrity.Server.
func (w wiring) HandOver(why string) error { return w.leader.HandOver(w.ctx, why, true) }

// Snapshots implements integrity.Server.
func (w wiring) Snapshots() raft.SnapshotStore { return w.storage.Snapshots }

// SetAside implements integrity.Server.
func (w wiring) SetAside(id string, why error) error { return w.storage.SetAside(id, why) }

// SendState implements integrity.Server.
func (w wiring) SendState(ctx context.Context, id string) error {
	m, ok := w.member(id)
	if !ok {
		return fmt.Errorf("%s has no member %q", w.cfg.Name, id)
	}
	sent := make(chan error, 1)
	w.raft.running.Go(func() { sent <- w.sendState(m) }) // ends with the connection, which stop cuts
	select {
	case err := <-sent:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// sendState sends the newest snapshot as Raft does, in the term 0, in which there is no leader.
func (w wiring) sendState(m group.Member) error {
	if err := w.Snapshot(); err != nil {
		return err
	}
	all, err := w.storage.Snapshots.List()
	if err == nil && len(all) == 0 {
		err = errors.New("there is none, and nothing to take one of")
	}
	if err != nil {
		return fmt.Errorf("find the newest snapshot: %w", err)
	}
	meta, state, err := w.storage.Snapshots.Open(all[0].ID)
	if err != nil {
		return err
	}
	defer state.Close()
	return w.raft.network.InstallSnapshot(raft.ServerID(m.ID), raft.ServerAddress(m.Address),
		&raft.InstallSnapshotRequest{
			RPCHeader: w.raft.header(), SnapshotVersion: meta.Version, LastLogIndex: meta.Index, LastLogTerm: meta.Term,
			Size:          meta.Size,
			Configuration: raft.EncodeConfiguration(meta.Configuration), ConfigurationIndex: meta.ConfigurationIndex,
		}, &raft.InstallSnapshotResponse{}, state)
}

// SchedulingDelay implements status.Server.
func (w wiring) SchedulingDelay() time.Duration { return w.lateness.Own() }

// LearnDelay implements status.Server.
func (w wiring) LearnDelay(id string, delay time.Duration) { w.lateness.Learn(id, delay) }

// Extension implements election.Server.
func (w wiring) Extension(id string) time.Duration { return w.lateness.Extension(id) }

// Ping implements status.Server.
func (w wiring) Ping(ctx context.Context, id string) error { return w.peers.Ping(ctx, id) }

// Reading implements status.Source.
func (w wiring) Reading() status.Reading {
	_, leader := w.raft.leader()
	silent, _ := w.Silent()
	disk := w.storage.Log
	return status.Reading{
		QueueLength: len(w.proposer.queue), QueueBytes: w.proposer.queued.Load(),
		View: w.state.Latest(), Stats: w.state.Stats(), StateLimit: w.stateLimit(), Now: w.cfg.Now(),
		Term: w.raft.CurrentTerm(), LastIndex: w.raft.LastIndex(), CommitIndex: w.raft.CommitIndex(),
		AppliedIndex: w.fsm.Applied().Index,
		Leads:        w.raft.State() == raft.Leader, HasLeader: leader != "", Voters: w.voters(), Silent: len(silent),
		Space: w.space.Alarm(), Quarantined: w.guard.Why() != "",
		DiskHangs: disk.Disk().Check() != nil, DiskFull: w.storage.Reserve.Full.Load(), LogFails: disk.Err() != nil,
	}
}

// Leader implements peer.Server and status.Server.
func (w wiring) Leader() string {
	_, leader := w.raft.leader()
	return string(leader)
}

// Succeeded implements peer.Server.
func (w wiring) Succeeded(cluster string) *group.Succession {
	return group.SuccessionOf(w.state.Latest(), w.id.ClusterID, cluster)
}

// RemovalOf implements peer.Server.
func (w wiring) RemovalOf(id string) *group.Removal {
	s := w.decision(id)
	if s.State != group.Removed {
		return nil
	}
	return new(s.Removal())
}

// Refused implements peer.Server.
func (w wiring) Refused(err error) { w.succession.Refused(err) }

// Removed implements peer.Server.
func (w wiring) Removed(r group.Removal) { w.autopilot.Expelled(r) }

// Move implements peer.Server.
func (w wiring) Move(ctx context.Context, addr string) error {
	return w.Apply(ctx, autopilot.Change{Kind: autopilot.MoveMember, ID: w.id.ServerID, Address: addr})
}

// JoinBy implements peer.Server.
func (w wiring) JoinBy(ctx context.Context, addr string) error { return w.autopilot.JoinBy(ctx, addr) }

// MayLead implements election.Server.
func (w wiring) MayLead() bool { return w.guard.Err() == nil && w.leader.MayLead() == nil }

// DiskHangs implements election.Server.
func (w wiring) DiskHangs() bool { return w.storage.Log.Disk().Check() != nil }

// Writing implements election.Server.
func (w wiring) Writing() bool { return w.storage.Log.Disk().Busy() }

// TermAt implements election.Server.
func (w wiring) TermAt(newest uint64) uint64 { return w.storage.TermAt(newest) }

// Campaign implements election.Server.
func (w wiring) Campaign(ctx context.Context, still func() error) error {
	return w.raft.filter.Campaign(ctx, w.raft.header(), still)
}

// TellToCampaign implements election.Server.
func (w wiring) TellToCampaign(m group.Member) error {
	return w.raft.network.TimeoutNow(raft.ServerID(m.ID), raft.ServerAddress(m.Address),
		&raft.TimeoutNowRequest{RPCHeader: w.raft.header()}, &raft.TimeoutNowResponse{})
}

// WhyFirst implements election.Server.
func (w wiring) WhyFirst() string {
	read := w.storage.Start
	if read.Log.Last > 0 || read.Snapshot > 0 {
		for _, p := range w.Predecessors() {
			if p.Successor == w.id.ClusterID && read.Log.Last <= read.Snapshot { // nothing was written since
				return fmt.Sprintf("%s was recovered as the only server of this cluster at %s, from cluster %s",
					group.NameOf(p.By), p.At.Format(time.RFC3339), p.Cluster)
			}
		}
		return fmt.Sprintf("no server led when %s was started at %s", w.cfg.Name,
			w.storage.Opened.UTC().Format(time.RFC3339))
	}
	if w.cfg.Bootstrap {
		return "the cluster began with it"
	}
	return ""
}

// Done implements autopilot.Host.
func (w wiring) Done() <-chan struct{} { return w.ctx.Done() }

// LeaderAt implements autopilot.Host and readindex.Server.
func (w wiring) LeaderAt() (dest string, local bool, err error) { return w.leaderAt() }

// LeaderChanged implements readindex.Server.
func (w wiring) LeaderChanged(dest string) <-chan struct{} { return w.election.LeaderChanged(dest) }

// Term implements autopilot.Host and readindex.Server.
func (w wiring) Term() uint64 { return w.leader.Term() }

// Transfer implements autopilot.Host.
func (w wiring) Transfer(ctx context.Context, m group.Member, why string) error {
	return w.leader.Transfer(ctx, m, why)
}

// NoOp implements autopilot.Host and leader.Server.
func (w wiring) NoOp() raft.ApplyFuture { return w.noOp() }

// Begin implements autopilot.Host.
func (w wiring) Begin(question func() raft.Future) <-chan error { return w.raft.Begin(question) }

// ProposeError implements autopilot.Host.
func (w wiring) ProposeError(err error) error { return proposeError(err) }

// AppendedAt implements autopilot.Host.
func (w wiring) AppendedAt(index uint64) time.Time {
	var entry raft.Log
	if w.storage.Log.GetLog(index, &entry) != nil {
		return time.Time{}
	}
	return entry.AppendedAt
}

// Observe implements leader.Server.
func (w wiring) Observe(ctx context.Context) []autopilot.Server { return w.autopilot.Observe(ctx) }

// MayServe implements leader.Server and readindex.Server.
func (w wiring) MayServe() error { return w.guard.Err() }

// FirstEntry implements leader.Server.
func (w wiring) FirstEntry() (term uint64, err error) {
	future := w.noOp()
	if err := future.Error(); err != nil {
		return 0, proposeError(err)
	}
	response := future.Response().(*fsm.Response)
	return response.Term, response.Err
}

// Mute implements succession.Server.
func (w wiring) Mute() { w.raft.stream.Cut() }

// Withdraw implements succession.Server.
func (w wiring) Withdraw(reason string) { w.guard.Begin(reason) }

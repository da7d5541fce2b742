package raftstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/barque/barque/raftstore/autopilot"
	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/disk"
	"github.com/barque/barque/raftstore/election"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/leader"
	"github.com/barque/barque/raftstore/logstore"
	"github.com/barque/barque/raftstore/node"
	"github.com/barque/barque/raftstore/peer"
	"github.com/barque/barque/raftstore/recovery"
	"github.com/barque/barque/raftstore/status"
	"github.com/barque/barque/raftstore/transport"
)

// StoreFormat is the newest layout of a server's directory that this program supports.
const StoreFormat = disk.DirFormat

// Names of the other parts that a program needs to run a replicated store.
type (
	// Stream is the transport between servers: a Mux, or memnet in tests.
	Stream = transport.Stream
	// Mux is a Stream over TLS, which other protocols may share.
	Mux = transport.Mux
	// MuxConfig is the configuration of a Mux.
	MuxConfig = transport.Config
	// Timeouts of the group.
	Timeouts = group.Timeouts
	// Member is one server of the group.
	Member = group.Member
	// Status is how one server sees itself.
	Status = status.Status
	// PeerStatus is one member's status, or why there is none.
	PeerStatus = status.PeerStatus
	// Detail is the part of a server's status that is only collected on request.
	Detail = status.Detail
	// Way is the way from one server to a member.
	Way = status.Way
	// LeaderChange is one change of leaders, as one server saw it.
	LeaderChange = status.LeaderChange
	// LogStore keeps the log, the term and the vote of a server.
	LogStore = logstore.Store
	// SilentMember is a member that does not answer the leader.
	SilentMember = election.SilentMember
	// MemberHealth is how a member does, as the leader sees it.
	MemberHealth = group.Health
	// Removal tells when and why a server was taken out of the group.
	Removal = group.Removal
	// MemberChange is a change of the members that the leader has carried out.
	MemberChange = group.MemberChange
	// RemovedError is returned by Open for the directory of such a server.
	RemovedError = group.RemovedError
	// Report describes the directory of a stopped server.
	Report = recovery.Report
	// Succession is the replacement of a cluster by another one, which was made from its remains.
	Succession = group.Succession
	// SupersededError is returned by Open for the directory of a server whose cluster has a
	// successor.
	SupersededError = group.SupersededError
	// RecoverConfig names the directory that becomes its own cluster.
	RecoverConfig = recovery.Config
	// WrongServerError is returned if another server than the expected one answers at an address.
	WrongServerError = peer.WrongServerError
	// RefusedError is returned for a change of members that the leader will not make.
	RefusedError = peer.RefusedError
	// PendingError is returned for a removal or demotion that is recorded, and waits until the
	// quorum allows it.
	PendingError = autopilot.PendingError
)

// ErrLeadershipEnded is the cause of a context of AwaitLeadership when leadership was lost.
var ErrLeadershipEnded = leader.ErrEnded

// ErrStranger is part of a reason of MuxConfig.Barred for a server that may ask to become a member.
var ErrStranger = transport.ErrStranger

// NewMux returns a Mux that accepts connections until it is closed.
func NewMux(cfg MuxConfig) (*Mux, error) { return transport.NewMux(cfg) }

// Config of a server. Stream is needed, and Dir unless InMemory is set.
type Config struct {
	// Name of this server, for people, of 253 bytes at most, as a host's. It becomes part of the
	// server's ID. Default: "server".
	Name string
	// Dir is the directory that belongs to this server alone. It is made when it is absent.
	Dir string
	// InMemory keeps nothing on disk. It is for tests.
	InMemory bool
	// ServerID is the ID of a server in memory, so that a test can start it again with the data of
	// its WrapLog and WrapSnapshots. Default: a new one.
	ServerID string
	// Bootstrap makes this server the first of a new cluster if it has no data yet; otherwise it is
	// ignored. Without it, a new server waits until it is made a member: see Join.
	Bootstrap bool
	// ClusterID names the cluster; data and peers of another one are refused. A first server draws
	// one if it is empty; a joining server must have it.
	ClusterID string
	// Peers returns possible addresses of other servers, besides those in the group's
	// configuration. It is called while this server is out of touch, as after a change of all
	// addresses. It may be nil.
	Peers func() []string
	// OnIdentity is called with the server's ID before any connection is opened or accepted, so
	// that its certificate can name it. Open fails with its error. It may be nil.
	OnIdentity func(id string) error
	// CleanAfter is how long a member must not answer the leader before it is removed as dead, if
	// MinVoters voters, and a quorum of them, remain. 0, the default, means never. With three
	// voters and the default MinVoters no server is removed before a fourth has its vote.
	CleanAfter time.Duration
	// MinVoters is how many voters must stay. Default: 3.
	MinVoters int
	// OnRemoved is called once, when this server has learned that it was removed from the group for
	// good. It serves nothing any more, and Open refuses its directory with a *RemovedError. The
	// program should close it. It must not block.
	OnRemoved func(Removal)
	// OnChange is called on the leader after it has changed the members: it has removed one that
	// was dead, or has carried out an order. It must not block, and may be nil.
	OnChange func(MemberChange)
	// OnSuperseded is called once, when this server has learned that its cluster has a successor.
	// It serves nothing any more, and Open refuses its directory with a *SupersededError. The
	// program should close it. It must not block.
	OnSuperseded func(Succession)
	// Version of the program, for status.
	Version string
	// Stream connects the servers. The caller owns it, and closes it after the server.
	Stream   Stream
	Timeouts Timeouts
	Limits   Limits
	// QueueLength bounds the requests that wait to be proposed. Default: 16,384.
	QueueLength int
	// RetryFor bounds how long a request is repeated without a leader. If there has been none for
	// that time, and for LeaderlessAfter, it is two seconds at most. Default: 10 s.
	RetryFor time.Duration
	// SnapshotEvery is the number of log entries between snapshots. TrailingLogs is the least
	// number of entries kept after one, for followers that lag a little. Defaults: 16,384 and
	// 8,192. In any case the log on disk reaches back to the older of the two kept snapshots,
	// unless the disk is full.
	SnapshotEvery, TrailingLogs uint64
	// DiskReserve is the number of bytes that are reserved for a full disk, so that the server can
	// still shorten its log and stop gracefully; less on a small volume. Default: 64 MiB; a
	// negative number means none.
	DiskReserve int64

	// Now is the wall clock of this server, which decides while it leads when keys expire. Default:
	// time.Now. Tests replace it by drifting or set clocks.
	Now func() time.Time

	// SchedulingDelay returns how late this process was scheduled lately; see package scheddelay.
	// Time-outs follow it. Default: the server measures it.
	SchedulingDelay func() time.Duration

	// LogStore is the format of the log on disk: "boltdb" (one file, the default) or "wal"
	// (appended segments: fewer syncs and bytes for each write).
	LogStore string

	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
	// OnFatal is called once, when this server can never apply another log entry: a newer version
	// wrote it, or it is damaged. The process should end.
	OnFatal func(error)
	// OnNewState is called once, when this server is in quarantine and a correct state of the
	// leader is on its disk. The server takes that state when it is closed and opened again. nil:
	// that happens at the next start.
	OnNewState func()
	// KeepQuarantine leaves a quarantined server in that state, for an investigation.
	KeepQuarantine bool
	// Warnings of the program go into the status of this server, which the other servers see; nil:
	// none.
	Warnings func() []string
	// Report of the program goes into the Detail of this server's status, as JSON. It must return
	// when ctx ends; nil: none.
	Report func(ctx context.Context) []byte
	// JoinAgain tells the operator, in messages, how a server joins again as a new one. Default:
	// with an empty directory.
	JoinAgain string
	// Forwards returns the reason why a transaction is none of the server that has forwarded it to
	// this leader, by the name in its certificate. nil accepts all.
	Forwards func(from string, txn *Txn) error

	// WrapLog and WrapSnapshots decorate this server's storage, and FaultPoint is called at each
	// point of package faultpoint. They are for tests: disks that fail, hang or lie, and processes
	// that die at the worst moment. Nil in production.
	WrapLog       func(LogStore) LogStore
	WrapSnapshots func(raft.SnapshotStore) raft.SnapshotStore
	FaultPoint    func(name string)
}

// Server is a replicated Store with its place in the group of servers.
type Server struct {
	*Store
	node *node.Node
}

// Open starts a server from its directory. It does not wait for a leader: the first reads and
// writes do.
func Open(cfg Config) (*Server, error) {
	limits := cfg.Limits.withDefaults()
	if err := limits.validate(); err != nil {
		return nil, err
	}
	n, err := node.Open(node.Config{
		Name: cfg.Name, Dir: cfg.Dir, InMemory: cfg.InMemory, ServerID: cfg.ServerID, OnIdentity: cfg.OnIdentity,
		Bootstrap: cfg.Bootstrap,
		ClusterID: cfg.ClusterID, Version: cfg.Version, Peers: cfg.Peers,
		CleanAfter: cfg.CleanAfter, MinVoters: cfg.MinVoters, OnRemoved: cfg.OnRemoved, OnChange: cfg.OnChange,
		OnSuperseded: cfg.OnSuperseded, Stream: cfg.Stream, Timeouts: cfg.Timeouts,
		History: limits.history(), StateBytes: limits.StateBytes, CheckTxn: limits.checkForwarded,
		Forwards: cfg.Forwards, QueueLength: cfg.QueueLength,
		SnapshotEvery: cfg.SnapshotEvery, TrailingLogs: cfg.TrailingLogs,
		Now: cfg.Now, Logger: cfg.Logger, Registerer: cfg.Registerer, OnFatal: cfg.OnFatal, Warnings: cfg.Warnings,
		Report: cfg.Report, JoinAgain: cfg.JoinAgain, OnNewState: cfg.OnNewState, KeepQuarantine: cfg.KeepQuarantine,
		SchedulingDelay: cfg.SchedulingDelay, LogStore: cfg.LogStore, DiskReserve: cfg.DiskReserve,
		WrapLog: cfg.WrapLog, WrapSnapshots: cfg.WrapSnapshots, FaultPoint: cfg.FaultPoint,
	})
	if err != nil {
		return nil, err
	}
	return &Server{Store: newStore(n.State(), n, limits, cfg.RetryFor, cfg.Now, cfg.Logger), node: n}, nil
}

// Inspect reads the directory of a stopped server.
func Inspect(dir string, logger *slog.Logger) (*Report, error) { return recovery.Inspect(dir, logger) }

// Ended reports whether a directory is marked as needed no more: its server has learned that it was
// removed, or that its cluster has a successor. It takes no lock. A directory without a store is
// not marked.
func Ended(dir string) (bool, error) { return disk.Ended(&disk.Options{Dir: dir}) }

// Superseded returns the successor of a directory's cluster, as recorded by its server; nil without
// one. The server may run.
func Superseded(dir string) (*Succession, error) { return recovery.Superseded(dir) }

// Recover makes the directory of a server that has lost its quorum for good the only member of a
// new cluster. Writes on the lost servers only are gone. A crash in the middle leaves a directory
// that Open refuses; the same call finishes it.
func Recover(cfg RecoverConfig) error { return recovery.Recover(cfg) }

// ID returns the server's ID: its name and something random. It does not depend on the address,
// and a server with a new directory has a new one.
func (s *Server) ID() string { return s.node.ID() }

// ClusterID returns the ID of the cluster.
func (s *Server) ClusterID() string { return s.node.ClusterID() }

// Predecessors returns the clusters that this one replaces, in this server's view.
func (s *Server) Predecessors() []Succession { return s.node.Predecessors() }

// Succeed makes this cluster the successor of another one, as Recover does, for a new cluster that
// begins with a backup of that one. Servers of the other cluster that connect to a member of this
// one are told so, and stop. It may be repeated.
func (s *Server) Succeed(ctx context.Context, cluster string) error {
	op, err := s.node.Succeed(cluster)
	if err == nil {
		_, err = s.do(ctx, &command.Request{Kind: command.KindTxn, Txn: kv.Txn{Ops: []kv.Op{op}}})
	}
	if err != nil {
		return fmt.Errorf("write down that this cluster goes on in place of cluster %q: %w", cluster, err)
	}
	return nil
}

// Members returns the members in this server's view.
func (s *Server) Members() []Member { return s.node.Members() }

// Leader returns the leader in this server's view; false without one.
func (s *Server) Leader() (Member, bool) {
	for _, m := range s.node.Members() {
		if m.Leader {
			return m, true
		}
	}
	return Member{}, false
}

// Status returns this server's view of itself.
func (s *Server) Status() Status { return s.node.Status() }

// Ready returns nil if this server can serve: if a linearizable read is answered before ctx ends,
// at the latest after Config.RetryFor. Otherwise the error has the reason, at once if it is known:
//
//   - the server is closed (ErrClosed), was removed (a *RemovedError), or is superseded (a
//     *SupersededError);
//   - it is in quarantine (ErrQuarantined), waits for its disk, or is no member yet;
//   - it has found no leader for longer than an election takes.
//
// All but ErrClosed are ErrUnavailable. A full disk or a full store is no reason by itself: reads
// and deletions are served, and are the remedy. Status reports it.
func (s *Server) Ready(ctx context.Context) error {
	if err := s.node.Ailment(); err != nil {
		return err
	}
	if _, err := s.View(ctx, ViewOptions{}); err != nil {
		return s.node.Explain(err)
	}
	return nil
}

// PeerStatus asks all members for their status. It takes as long as Timeouts.Call if one of them
// does not answer.
func (s *Server) PeerStatus(ctx context.Context) []PeerStatus { return s.node.PeerStatus(ctx) }

// PeerDetails is PeerStatus with a Detail in each status: the round trips between the members, and
// the reports of the programs around the store. It takes a second longer if a member does not
// answer.
func (s *Server) PeerDetails(ctx context.Context) []PeerStatus { return s.node.PeerDetails(ctx) }

// ConfirmTerm returns nil if this server led the term, which AwaitLeadership has returned, at a
// moment after the call. A quorum proves it: at that moment no later leader had been elected. It
// costs one exchange, which calls at the same time share, and nothing is written. It fails with
// ErrUnavailable or ErrClosed.
func (s *Server) ConfirmTerm(ctx context.Context, term uint64) error {
	return s.node.ConfirmTerm(ctx, term)
}

// SinceEarlierProof returns how long ago, at least, ConfirmTerm can have succeeded on the leader of
// an earlier term than this server's. It will not succeed there any more. It costs one exchange.
// Other servers' clocks count: their rates may differ. It fails with ErrUnavailable if no quorum
// knows, as in an upgrade from a version without it, and with ErrClosed.
func (s *Server) SinceEarlierProof(ctx context.Context, term uint64) (time.Duration, error) {
	return s.node.SinceEarlierProof(ctx, term)
}

// Silent returns the members that do not answer the heartbeats of this server, and a channel that
// is closed when that changes. It is known within Timeouts.Heartbeat. A new leader knows a dead
// former leader as silent at once, if its address refuses connections. It returns none while this
// server does not lead.
//
// Silence is evidence and no verdict: a member that is short of CPU for a moment is silent, too.
func (s *Server) Silent() ([]SilentMember, <-chan struct{}) { return s.node.Silent() }

// Join makes this server a member of the cluster of the servers at the addresses. It repeats until
// one of them is reached, or ctx ends. A member stays one. The server gets its vote, by itself,
// when it has caught up. While it repeats it logs the reason.
func (s *Server) Join(ctx context.Context, addrs []string) error {
	var last error
	began, told := time.Now(), time.Now()
	for {
		err := s.node.Join(ctx, addrs)
		switch {
		case err == nil || !errors.Is(err, kv.ErrUnavailable) && !errors.Is(err, kv.ErrUnknownOutcome):
			return err
		case last != nil && over(ctx) && errors.Is(err, kv.ErrUnavailable):
			return last // this attempt was cut short, which says nothing about the servers
		}
		last = err
		if time.Since(told) >= joinSilence {
			told = time.Now()
			s.logger.Warn("this server cannot become a member of the cluster yet, and tries again", "servers", addrs,
				"for", time.Since(began).Round(time.Second), "err", err)
		}
		select {
		case <-time.After(10 * retryPause):
		case <-ctx.Done():
			return err
		}
	}
}

// joinSilence is the interval at which a server that cannot join logs the reason.
const joinSilence = 10 * time.Second

// over reports whether a context has ended, or ends at this moment, as when a connection with its
// deadline has failed first.
func over(ctx context.Context) bool {
	end, bounded := ctx.Deadline()
	return ctx.Err() != nil || bounded && !time.Now().Before(end)
}

// AddNonvoter makes the server with the ID, at the address, a member without a vote. It gets its
// vote, by itself, when it has caught up. For a member it sets a new address.
func (s *Server) AddNonvoter(ctx context.Context, id, address string) error {
	return s.change(ctx, autopilot.Change{Kind: autopilot.AddMember, ID: id, Address: address})
}

// Promote gives a member its vote now, and takes back a demotion, or an unfinished removal. It is
// refused for a server that is failing, lagging, or partitioned from a voter.
func (s *Server) Promote(ctx context.Context, id string) error {
	return s.change(ctx, autopilot.Change{Kind: autopilot.PromoteMember, ID: id})
}

// Demote takes a member's vote away, until it is promoted, and returns when that is done; a leader
// hands over first. It is refused if the remaining able voters would be no quorum. A begun demotion
// continues as with Remove.
func (s *Server) Demote(ctx context.Context, id string) error {
	return s.change(ctx, autopilot.Change{Kind: autopilot.DemoteMember, ID: id})
}

// Remove removes a server from the cluster for good, and returns when that is done; a leader hands
// over first. It is refused if the remaining able voters would be no quorum. why is recorded, for
// people.
//
// It continues under every leader, until it is done or Promote takes it back. If the remaining
// voters are no quorum any more it waits for them; after half a minute of that the error is a
// *PendingError. A living server learns of its removal: see Config.OnRemoved.
func (s *Server) Remove(ctx context.Context, id, why string) error {
	return s.change(ctx, autopilot.Change{Kind: autopilot.RemoveMember, ID: id, Why: why})
}

// CheckDeparture tells whether Remove and Demote of the server would be refused, and changes
// nothing.
func (s *Server) CheckDeparture(ctx context.Context, id string) error {
	return s.change(ctx, autopilot.Change{Kind: autopilot.RemoveMember, ID: id, DryRun: true})
}

// Leaving reports whether a member's removal is recorded, in this server's view.
func (s *Server) Leaving(id string) bool { return s.node.Leaving(id) }

// Gone returns the removed servers, by ID, in this server's view.
func (s *Server) Gone() map[string]Removal { return s.node.Gone() }

// Removed returns a channel that is closed when this server has learned that it was taken out of
// the cluster.
func (s *Server) Removed() <-chan struct{} { return s.node.Removed() }

// TransferLeadership makes a voter the leader: the one with the ID, or the most suitable one if it
// is empty. It is refused for a failing or lagging server.
func (s *Server) TransferLeadership(ctx context.Context, id string) error {
	return s.change(ctx, autopilot.Change{Kind: autopilot.TransferLeadership, ID: id})
}

// HandOver makes the most suitable other voter the leader, if this server leads and there is one;
// otherwise it does nothing. A server that is about to stop calls it while it still serves. Close
// does so, too, but late for the server's callers. It returns when this server no longer leads,
// which is as soon as another one campaigns. It fails at once if too few others answer, and
// otherwise within three times Timeouts.Election.
func (s *Server) HandOver() error { return s.node.HandOver() }

// HandOverTo makes a voter the leader that may lead, by its ID, if this server leads. It fails with
// ErrUnavailable if there is none that is able, and this server leads on. why goes into the log.
func (s *Server) HandOverTo(ctx context.Context, why string, may func(id string) bool) error {
	return s.node.HandOverTo(ctx, why, may)
}

func (s *Server) change(ctx context.Context, c autopilot.Change) error {
	return s.retry(ctx, func() error { return s.node.Apply(ctx, c) })
}

// Snapshot writes the state to disk and shortens the log, now instead of when it is time.
func (s *Server) Snapshot() error { return s.node.Snapshot() }

// Purge removes from this server's disk everything that the state does not have once the history up
// to the floor, a revision, is dropped (Compact): values that were replaced or deleted, in history,
// older snapshots, the log and its free pages. It waits for that, and may be repeated. Blocks of
// removed files stay on the medium until the file system uses them again.
func (s *Server) Purge(ctx context.Context, floor uint64) error { return s.node.Purge(ctx, floor) }

package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/barque/barque/raftstore/disk"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/logstore"
	"github.com/barque/barque/raftstore/mvcc"
	"github.com/barque/barque/raftstore/raftlog"
	"github.com/barque/barque/raftstore/transport"
)

// Config of a Node. Stream, and Dir or InMemory, are needed.
type Config struct {
	// Name of this server, for people, of maxName bytes at most. It becomes part of the server's
	// ID.
	Name string
	// Dir is the directory that belongs to this server alone. It is made when it is absent.
	Dir string
	// InMemory keeps nothing on disk, for tests. Dir is not used then.
	InMemory bool
	// OnIdentity is called with the server's ID before any connection; it may be nil.
	OnIdentity func(id string) error
	// ServerID is the ID of a server in memory, so that a test can start it again. Default: a new
	// one.
	ServerID string
	// Bootstrap makes this server the first of a new cluster, if Dir is empty; otherwise it is
	// ignored. Without it, a new server waits until it is made a member.
	Bootstrap bool
	// ClusterID names the cluster. A directory or a peer of another cluster is refused.
	ClusterID string
	// Peers returns possible addresses of other servers, besides those in the group's
	// configuration. It is called while this server is out of touch. It may be nil.
	Peers func() []string
	// CleanAfter is how long a member must not answer the leader before it is removed as dead, if
	// MinVoters voters, and a quorum of them, remain. 0 means never.
	CleanAfter time.Duration
	// MinVoters is how many voters must stay. Default: 3.
	MinVoters int
	// OnRemoved is called, once, when this server has learned that it was taken out of the group.
	// It does not serve any more, and should be closed. It must not block.
	OnRemoved func(group.Removal)
	// OnChange is called on the leader after it has changed the members. It must not block.
	OnChange func(group.MemberChange)
	// OnSuperseded is called once, when this server has learned that its cluster has a successor.
	// The server serves nothing any more, and should be closed. It must not block.
	OnSuperseded func(group.Succession)
	// Version of the program, for status.
	Version string
	Stream  transport.Stream

	Timeouts group.Timeouts
	History  mvcc.Limits
	// StateBytes is the limit of the size of all items together, while this server leads; see
	// raftstore.Limits. 0 or less is none.
	StateBytes int64
	// CheckTxn validates transactions that another server has forwarded to this leader, as for its
	// own callers. The errors are ErrTooLarge or ErrInvalid. nil accepts all.
	CheckTxn func(*kv.Txn) error
	// Forwards returns the reason why a transaction is none of the server that has forwarded it to
	// this leader, by the name in its certificate. nil accepts all.
	Forwards func(from string, txn *kv.Txn) error
	// QueueLength bounds the requests that wait to be proposed. Default: 16,384.
	QueueLength int
	// SnapshotEvery is the number of log entries between snapshots, and TrailingLogs the number
	// kept after one, for followers that lag a little. Defaults: 16,384 and 8,192.
	SnapshotEvery uint64
	TrailingLogs  uint64
	// DiskReserve is the number of bytes that are reserved for a full disk; less on a small volume.
	// Default: 64 MiB; a negative number means none.
	DiskReserve int64

	// Now is the wall clock, for the time in this server's proposed commands. Tests replace it by
	// drifting or set clocks. Default: time.Now.
	Now func() time.Time

	// SchedulingDelay returns how late this process was scheduled lately. Default: the server
	// measures it.
	SchedulingDelay func() time.Duration

	Logger     *slog.Logger
	Registerer prometheus.Registerer // registers the metrics; nil registers none
	// OnFatal is called, once, when this server can never apply another entry. The process should
	// end; the state that it shows does not advance any more. By default it is only logged.
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
	// JoinAgain is the advice, in messages to operators, how a server joins again as a new one.
	// Default: with an empty directory.
	JoinAgain string

	// LogStore is how the log is kept on disk: "boltdb", which is the default, or "wal".
	LogStore string

	// WrapLog and WrapSnapshots decorate this server's storage, and FaultPoint is called at each
	// point of package faultpoint. All three are for tests, and may be nil.
	WrapLog       func(logstore.Store) logstore.Store
	WrapSnapshots func(raft.SnapshotStore) raft.SnapshotStore
	FaultPoint    func(name string)
}

// maxName is how long the name of a host may be.
const maxName = 253

func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Stream == nil:
		return c, errors.New("raftstore: Stream is needed: a transport.Mux, or memnet for tests")
	case c.Dir == "" && !c.InMemory:
		return c, errors.New("raftstore: Dir is needed")
	case len(c.Name) > maxName:
		return c, fmt.Errorf("raftstore: Name has %d bytes, and may have %d at most", len(c.Name), maxName)
	case len(c.ClusterID) > 255:
		return c, errors.New("raftstore: ClusterID may have 255 bytes at most")
	case !c.Bootstrap && c.ClusterID == "" && c.InMemory:
		return c, errors.New("raftstore: ClusterID is needed to join a cluster")
	}
	if c.Name == "" {
		c.Name = "server"
	}
	c.Timeouts = c.Timeouts.WithDefaults()
	if c.Timeouts.Lease > c.Timeouts.Heartbeat {
		return c, errors.New("raftstore: Timeouts.Lease must not be longer than Timeouts.Heartbeat")
	}
	if c.MinVoters <= 0 {
		c.MinVoters = 3
	}
	if c.QueueLength <= 0 {
		c.QueueLength = 16 << 10
	}
	if c.SnapshotEvery == 0 {
		c.SnapshotEvery = 16 << 10
	}
	if c.DiskReserve == 0 {
		c.DiskReserve = disk.DefaultReserve
	}
	if c.TrailingLogs == 0 {
		c.TrailingLogs = 8 << 10
	}
	if c.JoinAgain == "" {
		c.JoinAgain = "let it join again with an empty data directory"
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// dir is the directory of the server; empty in memory.
func (c *Config) dir() string {
	if c.InMemory {
		return ""
	}
	return c.Dir
}

// disk returns how the server keeps its data.
func (c *Config) disk() disk.Options {
	return disk.Options{
		Dir: c.Dir, InMemory: c.InMemory, LogStore: c.LogStore, WriteTimeout: c.Timeouts.DiskWrite,
		Reserve: c.DiskReserve, TrailingLogs: c.TrailingLogs,
		Logger: c.Logger, WrapLog: c.WrapLog, WrapSnapshots: c.WrapSnapshots, FaultPoint: c.FaultPoint,
	}
}

// snapshotInterval is the interval at which Raft checks whether a snapshot is due.
const snapshotInterval = 30 * time.Second

// raft returns the configuration of Raft itself.
func (c *Config) raft(id string, notify chan<- bool) *raft.Config {
	r := raft.DefaultConfig()
	r.LocalID = raft.ServerID(id)
	r.HeartbeatTimeout = c.Timeouts.Heartbeat
	r.ElectionTimeout = c.Timeouts.Election
	r.LeaderLeaseTimeout = c.Timeouts.Lease
	r.SnapshotThreshold = c.SnapshotEvery
	r.SnapshotInterval = snapshotInterval
	r.TrailingLogs = c.TrailingLogs
	r.MaxAppendEntries = 64
	// Without the buffer Raft answers every request that it takes. A stopping Raft never answers
	// those in the buffer. Our entries are batches already.
	r.BatchApplyCh = false
	r.NoLegacyTelemetry = true
	r.NoSnapshotRestoreOnStart = true // storage has read the snapshot
	r.NotifyCh = notify
	r.Logger = raftlog.New(c.Logger)
	return r
}

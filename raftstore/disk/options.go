package disk

import (
	"log/slog"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/logstore"
)

// Options configure a server's data on disk.
type Options struct {
	// Dir belongs to the server alone. InMemory keeps nothing on disk; Dir is not used then.
	Dir      string
	InMemory bool
	// LogStore is how the log is kept on disk: see logstore.ParseKind.
	LogStore string
	// WriteTimeout is how long a write to the log may take until the disk counts as hanging.
	WriteTimeout time.Duration
	// Extension returns by how much WriteTimeout is extended now; nil: never.
	Extension func() time.Duration
	// Reserve is the number of bytes reserved for a full disk; a negative number means none.
	Reserve int64
	// TrailingLogs is how many entries stay behind a snapshot.
	TrailingLogs uint64
	Logger       *slog.Logger
	// Observe receives the duration of each write to the log; nil: unused.
	Observe func(op logstore.Operation, took time.Duration)
	// Fatal is called when the log cannot continue.
	Fatal func(error)

	// WrapLog, WrapSnapshots and FaultPoint are for tests, and may be nil.
	WrapLog       func(logstore.Store) logstore.Store
	WrapSnapshots func(raft.SnapshotStore) raft.SnapshotStore
	FaultPoint    func(name string)
}

// Owner is the server that a new directory is made for.
type Owner struct {
	Name, ServerID, ClusterID string
	// Bootstrap lets the server draw the ID of a new cluster.
	Bootstrap bool
}

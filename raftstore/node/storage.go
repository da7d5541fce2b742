package node

import (
	"fmt"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/logstore"
)

const (
	// logDir is where, below the data directory, the log is.
	logDir = "log"
	// keptSnapshots is how many snapshots stay on disk.
	keptSnapshots = 2
)

// storage is everything that a server keeps.
type storage struct {
	log       *logstore.Log
	snapshots raft.SnapshotStore
}

func openStorage(cfg *Config, stats *metrics) (*storage, error) {
	kind, err := logstore.ParseKind(cfg.LogStore)
	if err != nil {
		return nil, err
	}
	opts := logstore.Options{
		Kind: kind, Timeout: cfg.Timeouts.DiskWrite, Observe: stats.observeLog, Logger: cfg.Logger,
		Wrap: cfg.WrapLog, Fault: cfg.FaultPoint,
	}
	if !cfg.InMemory {
		opts.Dir = filepath.Join(cfg.Dir, logDir)
	}
	log, err := logstore.Open(opts)
	if err != nil {
		return nil, err
	}
	snapshots, err := openSnapshots(cfg)
	if err != nil {
		log.Close()
		return nil, err
	}
	return &storage{log: log, snapshots: snapshots}, nil
}

func openSnapshots(cfg *Config) (snapshots raft.SnapshotStore, err error) {
	if cfg.InMemory {
		snapshots = raft.NewInmemSnapshotStore()
	} else if snapshots, err = raft.NewFileSnapshotStoreWithLogger(cfg.Dir, keptSnapshots, newRaftLogger(cfg.Logger)); err != nil {
		return nil, fmt.Errorf("open the snapshots in %s: %w", cfg.Dir, err)
	}
	if cfg.WrapSnapshots != nil {
		snapshots = cfg.WrapSnapshots(snapshots)
	}
	return snapshots, nil
}

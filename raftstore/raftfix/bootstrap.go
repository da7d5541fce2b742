package raftfix

import (
	"fmt"

	"github.com/hashicorp/raft"
)

// Bootstrap makes a server without a log the only member of a new group. It finishes a bootstrap
// that a crash has interrupted between Raft's two writes: the term, and the first entry of the log.
// Raft counts the term as existing state, and without members no server would ever be elected
// (TestCrashInTheMiddleOfABootstrap of package node).
func Bootstrap(
	cfg *raft.Config, log raft.LogStore, stable raft.StableStore, snapshots raft.SnapshotStore,
	transport raft.Transport, alone raft.Configuration,
) error {
	has, err := raft.HasExistingState(log, stable, snapshots)
	if err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	if has {
		return finishBootstrap(log, snapshots, alone)
	}
	if err := raft.BootstrapCluster(cfg, log, stable, snapshots, transport, alone); err != nil {
		return fmt.Errorf("make a new cluster: %w", err)
	}
	return nil
}

func finishBootstrap(log raft.LogStore, snapshots raft.SnapshotStore, alone raft.Configuration) error {
	last, err := log.LastIndex()
	if err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	all, err := snapshots.List()
	if err != nil {
		return fmt.Errorf("list the snapshots: %w", err)
	}
	if last > 0 || len(all) > 0 {
		return nil
	}
	entry := &raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(alone)}
	if err := log.StoreLog(entry); err != nil {
		return fmt.Errorf("finish making a new cluster: %w", err)
	}
	return nil
}

package amounts

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/barque/barque/raftstore"
)

func put(key, value string) raftstore.Txn {
	return raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: key, Value: []byte(value)}}}
}

// voters are the names of the members that vote, as a server knows them.
func voters(s *raftstore.Server) (names []string) {
	for _, m := range s.Members() {
		if m.Voter {
			names = append(names, m.Name)
		}
	}
	slices.Sort(names)
	return names
}

// unhurried gives the servers long time-outs, since most of the CPU time of minutes goes into
// heartbeats.
func unhurried(_ int, cfg *raftstore.Config) {
	cfg.Timeouts = raftstore.Timeouts{Heartbeat: 10 * time.Second, PromoteAfter: time.Millisecond}
}

// onDisk gives each server a directory of its own, and long time-outs.
func onDisk(t *testing.T) func(int, *raftstore.Config) {
	root := t.TempDir()
	return func(i int, cfg *raftstore.Config) {
		unhurried(i, cfg)
		cfg.InMemory, cfg.Dir = false, filepath.Join(root, fmt.Sprint(i))
		cfg.SnapshotEvery, cfg.TrailingLogs = 50, 10
	}
}

package node

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/logstore"
)

// countingFSM is what has been applied, and by the state that a snapshot has.
type countingFSM struct{ applied chan uint64 }

func (f *countingFSM) Apply(l *raft.Log) any                { f.applied <- l.Index; return nil }
func (f *countingFSM) Snapshot() (raft.FSMSnapshot, error)  { return nil, fmt.Errorf("not asked for") }
func (f *countingFSM) Restore(snapshot io.ReadCloser) error { return snapshot.Close() }
func agreed(from, to, term uint64) (entries []*raft.Log) {
	for i := from; i <= to; i++ {
		entries = append(entries, &raft.Log{Index: i, Term: term, Type: raft.LogCommand})
	}
	return entries
}

// gapless is a log that may have no gaps.
type gapless struct{ *raft.InmemStore }

func (gapless) IsMonotonic() bool { return true }

// A leader that has cut its log sends its snapshot to a follower that has what comes after it, too.
func TestASnapshotOfLessThanTheLogLeavesTheRest(t *testing.T) {
	cfg := raft.DefaultConfig()
	cfg.LocalID, cfg.Logger = "s1", newRaftLogger(slog.New(slog.DiscardHandler))
	cfg.HeartbeatTimeout, cfg.ElectionTimeout = time.Hour, time.Hour
	store, snapshots := raft.NewInmemStore(), raft.NewInmemSnapshotStore()
	servers := raft.Configuration{Servers: []raft.Server{{ID: "s0", Address: "s0"}, {ID: "s1", Address: "s1"}}}
	_, follower := raft.NewInmemTransport("s1")
	_, leader := raft.NewInmemTransport("s0")
	leader.Connect("s1", follower)
	if err := raft.BootstrapCluster(cfg, store, store, snapshots, follower, servers); err != nil {
		t.Fatal(err)
	}
	fsm := &countingFSM{applied: make(chan uint64, 16)}
	log := &keptLog{logstore.NewCache(gapless{store}, 1<<20), snapshots}
	r, err := raft.NewRaft(cfg, fsm, log, store, snapshots, follower)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Shutdown().Error(); err != nil {
			t.Error(err)
		}
	}()
	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("s0"), Addr: []byte("s0")}
	send := func(a raft.AppendEntriesRequest) {
		t.Helper()
		a.RPCHeader, a.Term = header, 2
		var answer raft.AppendEntriesResponse
		if err := leader.AppendEntries("s1", "s1", &a, &answer); err != nil || !answer.Success {
			t.Fatalf("entries are not taken: %v, %+v", err, answer)
		}
	}
	send(raft.AppendEntriesRequest{PrevLogEntry: 1, PrevLogTerm: 1, Entries: agreed(2, 10, 2)})
	state := []byte("state")
	var configuration bytes.Buffer
	configuration.Write(raft.EncodeConfiguration(servers))
	install := raft.InstallSnapshotRequest{
		RPCHeader: header, SnapshotVersion: raft.SnapshotVersionMax, Term: 2, LastLogIndex: 5, LastLogTerm: 2,
		Configuration: configuration.Bytes(), ConfigurationIndex: 1, Size: int64(len(state)),
	}
	var installed raft.InstallSnapshotResponse
	if err := leader.InstallSnapshot("s1", "s1", &install, &installed, bytes.NewReader(state)); err != nil || !installed.Success {
		t.Fatalf("the snapshot is not installed: %v", err)
	}
	send(raft.AppendEntriesRequest{PrevLogEntry: 10, PrevLogTerm: 2, LeaderCommitIndex: 10})
	for want := uint64(6); want <= 10; want++ {
		select {
		case got := <-fsm.applied:
			if got != want {
				t.Fatalf("entry %d is applied, where %d was to be", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("entry %d is not applied", want)
		}
	}
}

func TestALogIsKeptOnlyIfItGoesOnFromTheSnapshot(t *testing.T) {
	for _, test := range []struct {
		name        string
		index, term uint64
		dropped     bool
	}{
		{"it goes on", 5, 2, false},
		{"it ends there", 10, 2, true},
		{"it ends before", 12, 2, true},
		{"it is another one", 5, 3, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			store, snapshots := raft.NewInmemStore(), raft.NewInmemSnapshotStore()
			if err := store.StoreLogs(agreed(2, 10, 2)); err != nil {
				t.Fatal(err)
			}
			_, trans := raft.NewInmemTransport("s1")
			sink, err := snapshots.Create(raft.SnapshotVersionMax, test.index, test.term, raft.Configuration{}, 1, trans)
			if err != nil {
				t.Fatal(err)
			}
			if err := sink.Close(); err != nil {
				t.Fatal(err)
			}
			log := &keptLog{logstore.NewCache(gapless{store}, 1<<20), snapshots}
			if log.IsMonotonic() != test.dropped {
				t.Errorf("the log is dropped: %t", log.IsMonotonic())
			}
		})
	}
}

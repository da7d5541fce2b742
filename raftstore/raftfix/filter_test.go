package raftfix

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/logstore"
)

// countingFSM counts the applied entries; its snapshot has none.
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

func newLog(t *testing.T, log raft.LogStore, snapshots raft.SnapshotStore, sever func(uint64)) *Log {
	return NewLog(logstore.NewCache(log, 1<<20),
		LogOptions{Snapshots: snapshots, Sever: sever, Fatal: func(err error) { t.Error(err) }})
}

// filteredInmem is an InmemTransport behind a filter.
type filteredInmem struct {
	*raft.InmemTransport
	filter *Filter
}

func (s *filteredInmem) Consumer() <-chan raft.RPC { return s.filter.Consumer() }

// follower is a Raft behind a filter that never campaigns, and the way of its leader, s0,
// to it. Its members are in entry 1 of term 1.
type follower struct {
	t      *testing.T
	raft   *raft.Raft
	log    *Log
	fsm    *countingFSM
	filter *Filter
	leader *raft.InmemTransport
	header raft.RPCHeader
	peers  []byte
}

func newFollower(t *testing.T) *follower {
	t.Helper()
	store := raft.NewInmemStore()
	return newFollowerWith(t, gapless{store}, store, func(uint64) {})
}

func newFollowerWith(t *testing.T, log raft.LogStore, stable raft.StableStore, sever func(uint64)) *follower {
	t.Helper()
	cfg := raft.DefaultConfig()
	cfg.LocalID, cfg.Logger, cfg.TrailingLogs = "s1", hclog.NewNullLogger(), 0
	cfg.HeartbeatTimeout, cfg.ElectionTimeout = time.Hour, time.Hour
	servers := raft.Configuration{Servers: []raft.Server{{ID: "s0", Address: "s0"}, {ID: "s1", Address: "s1"}}}
	snapshots := raft.NewInmemSnapshotStore()
	_, own := raft.NewInmemTransportWithTimeout("s1", time.Minute)
	f := &follower{
		t: t, log: newLog(t, log, snapshots, sever), fsm: &countingFSM{applied: make(chan uint64, 100)},
		header: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("s0"), Addr: []byte("s0")},
		peers:  raft.EncodeConfiguration(servers),
	}
	// its own half second may be too short for a disk
	_, f.leader = raft.NewInmemTransportWithTimeout("s0", time.Minute)
	f.leader.Connect("s1", own)
	if err := raft.BootstrapCluster(cfg, log, stable, snapshots, own, servers); err != nil {
		t.Fatal(err)
	}
	f.filter = NewFilter(f.log, stable, nil)
	var err error
	if f.raft, err = raft.NewRaft(cfg, f.fsm, f.log, stable, snapshots, &filteredInmem{own, f.filter}); err != nil {
		t.Fatal(err)
	}
	f.log.Attach(f.raft)
	var running sync.WaitGroup
	stopped := make(chan struct{})
	running.Go(func() { f.filter.Run(own.Consumer(), stopped) })
	t.Cleanup(func() {
		if err := f.raft.Shutdown().Error(); err != nil {
			t.Error(err)
		}
		close(stopped)
		running.Wait()
	})
	return f
}

// append sends entries, after one of prevTerm, and returns whether they are taken.
func (f *follower) append(term, prev, prevTerm, commit uint64, entries ...*raft.Log) bool {
	f.t.Helper()
	m := raft.AppendEntriesRequest{RPCHeader: f.header, Term: term, PrevLogEntry: prev, PrevLogTerm: prevTerm,
		LeaderCommitIndex: commit, Entries: entries}
	var answer raft.AppendEntriesResponse
	if err := f.leader.AppendEntries("s1", "s1", &m, &answer); err != nil {
		f.t.Fatal(err)
	}
	return answer.Success
}

// install sends a snapshot of all up to an entry.
func (f *follower) install(term, index, indexTerm uint64) {
	f.t.Helper()
	state := []byte("state")
	m := raft.InstallSnapshotRequest{
		RPCHeader: f.header, SnapshotVersion: raft.SnapshotVersionMax, Term: term, LastLogIndex: index,
		LastLogTerm:   indexTerm,
		Configuration: f.peers, ConfigurationIndex: 1, Size: int64(len(state)),
	}
	var answer raft.InstallSnapshotResponse
	if err := f.leader.InstallSnapshot("s1", "s1", &m, &answer, bytes.NewReader(state)); err != nil || !answer.Success {
		f.t.Fatalf("the snapshot of entry %d is refused: %v", index, err)
	}
}

// expectApplied waits until these entries, and no others, were applied.
func (f *follower) expectApplied(from, to uint64) {
	f.t.Helper()
	for want := from; want <= to; want++ {
		select {
		case got := <-f.fsm.applied:
			if got != want {
				f.t.Fatalf("entry %d is applied, where %d was to be", got, want)
			}
		case <-time.After(time.Minute):
			f.t.Fatalf("entry %d is not applied", want)
		}
	}
	if got := f.raft.AppliedIndex(); got != to {
		f.t.Errorf("entries up to %d are applied, want %d", got, to)
	}
}

func (f *follower) must(taken bool) {
	f.t.Helper()
	if !taken {
		f.t.Fatal("the leader's entries are refused")
	}
}

// A leader that has cut its log sends its snapshot to a follower that has the entries after
// it, too.
func TestASnapshotOfLessThanTheLogLeavesTheRest(t *testing.T) {
	f := newFollower(t)
	f.must(f.append(2, 1, 1, 0, agreed(2, 10, 2)...))
	f.install(2, 5, 2)
	f.must(f.append(2, 10, 2, 10))
	f.expectApplied(2, 10)
}

// A snapshot that was on its way for long arrives when its successor, or the entries after it,
// are here.
func TestALateSnapshotChangesNothing(t *testing.T) {
	for _, late := range []uint64{3, 5, 7} {
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			f := newFollower(t)
			f.install(2, 5, 2)
			f.must(f.append(2, 5, 2, 8, agreed(6, 10, 2)...))
			f.expectApplied(6, 8)
			f.install(2, late, 2)
			f.must(f.append(2, 10, 2, 10))
			f.expectApplied(9, 10)
		})
	}
}

// The leader's newest snapshot is older than the follower's, whose log begins where its own one
// ends.
func TestTheLogGoesOnAfterAnOlderSnapshot(t *testing.T) {
	f := newFollower(t)
	f.install(2, 5, 2)
	f.install(3, 3, 2)
	f.must(f.append(3, 3, 2, 4, agreed(4, 4, 2)...))
	f.must(f.append(3, 4, 2, 7, agreed(5, 7, 2)...))
	f.expectApplied(6, 7)
	if f.append(3, 6, 3, 7) {
		t.Error("an entry of another term counts as the same")
	}
}

// The log has entries of a leader that no other server ever followed, and then nothing of the
// snapshot. On disk, a log reaches back to the older snapshot otherwise.
func TestEntriesThatContradictASnapshotAreReplaced(t *testing.T) {
	t.Run("in memory", func(t *testing.T) { testContradiction(t, newFollower(t)) })
	for _, kind := range []logstore.Kind{logstore.Boltdb, logstore.WAL} {
		t.Run(string(kind), func(t *testing.T) {
			var floor atomic.Uint64 // there is an older snapshot, from which the log must lead on unless it is severed
			log, err := logstore.Open(logstore.Options{Dir: t.TempDir(), Kind: kind, Floor: floor.Load})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := log.Close(); err != nil {
					t.Error(err)
				}
			})
			testContradiction(t, newFollowerWith(t, log, log, floor.Store))
		})
	}
}

func testContradiction(t *testing.T, f *follower) {
	f.must(f.append(2, 1, 1, 0, agreed(2, 10, 2)...))
	f.install(4, 5, 3)
	if first, err := f.log.FirstIndex(); err != nil || first != 6 {
		t.Errorf("the log begins at %d (%v): entries that the snapshot contradicts can be sent to others", first, err)
	}
	f.must(f.append(4, 5, 3, 5))
	f.must(f.append(4, 5, 3, 7, agreed(6, 7, 4)...))
	f.expectApplied(6, 7)
	if f.append(4, 10, 2, 10) {
		t.Error("what was replaced is still there")
	}
}

// The log ends where the snapshot does, with another entry, which Raft takes for its newest one for
// ever.
func TestAnEntryThatContradictsASnapshotIsReplaced(t *testing.T) {
	f := newFollower(t)
	f.must(f.append(2, 1, 1, 0, agreed(2, 5, 2)...))
	f.install(4, 5, 3)
	f.must(f.append(4, 5, 3, 7, agreed(6, 7, 4)...))
	f.expectApplied(6, 7)
}

// The entries behind those of a message may not be the leader's, although its commit index is
// beyond it.
func TestCommittedIsOnlyWhatTheLeaderHasSent(t *testing.T) {
	f := newFollower(t)
	f.must(f.append(2, 1, 1, 0, agreed(2, 10, 2)...))
	f.must(f.append(3, 1, 1, 8, agreed(2, 4, 2)...))
	f.expectApplied(2, 4)
	f.must(f.append(3, 4, 2, 8, agreed(5, 8, 3)...))
	f.expectApplied(5, 8)
}

// After a snapshot, Raft asks whether the log is to be dropped.
func TestALogIsDroppedOnlyIfItEndsWithTheSnapshotOrBefore(t *testing.T) {
	for _, test := range []struct {
		name        string
		index, term uint64
		dropped     bool
		first       uint64
	}{
		{"it goes on", 5, 2, false, 2},
		{"it ends there", 10, 2, true, 2},
		{"it ends there with another one", 10, 3, true, 2},
		{"it ends before", 12, 2, true, 2},
		{"it is another one", 5, 3, false, 6},
	} {
		t.Run(test.name, func(t *testing.T) {
			store, snapshots := raft.NewInmemStore(), raft.NewInmemSnapshotStore()
			if err := store.StoreLogs(agreed(2, 10, 2)); err != nil {
				t.Fatal(err)
			}
			_, trans := raft.NewInmemTransport("s1")
			sink, err := snapshots.Create(raft.SnapshotVersionMax, test.index, test.term, raft.Configuration{}, 1,
				trans)
			if err != nil {
				t.Fatal(err)
			}
			if err := sink.Close(); err != nil {
				t.Fatal(err)
			}
			log := newLog(t, gapless{store}, snapshots, func(uint64) {})
			if log.IsMonotonic() != test.dropped {
				t.Errorf("the log is dropped: %t", !test.dropped)
			}
			if first, err := log.FirstIndex(); err != nil || first != test.first {
				t.Errorf("the log begins at %d (%v), want %d", first, err, test.first)
			}
		})
	}
}

// slow is a Raft's store that does not write until it may.
type slow struct {
	*raft.InmemStore
	may chan struct{} // nil: at once
}

func newSlowFollower(t *testing.T) (*follower, *slow) {
	t.Helper()
	store := &slow{InmemStore: raft.NewInmemStore()}
	f := newFollowerWith(t, store, store, func(uint64) {})
	f.must(f.append(2, 1, 1, 0))
	store.may = make(chan struct{})
	return f, store
}

func (s *slow) await() {
	if s.may != nil {
		<-s.may
	}
}

func (s *slow) SetUint64(key []byte, value uint64) error {
	s.await()
	return s.InmemStore.SetUint64(key, value)
}

func (s *slow) StoreLogs(entries []*raft.Log) error {
	s.await()
	return s.InmemStore.StoreLogs(entries)
}

// A server that is being asked for its vote does not campaign after the term in which it had not
// been yet: it would depose the elected one. That holds also while Raft has not even begun with
// the request.
func TestCampaign(t *testing.T) {
	for _, busy := range []bool{false, true} {
		for range 10 { // where two wait, either may be first
			synctest.Test(t, func(t *testing.T) {
				f, store := newSlowFollower(t)
				var wrote, asked, campaigned sync.WaitGroup
				if busy {
					for range 2 { // Raft writes the first, and the second waits before it
						wrote.Go(func() { f.append(2, 1, 1, 0, agreed(2, 2, 2)...) })
						synctest.Wait()
					}
				}
				asked.Go(func() {
					vote := raft.RequestVoteRequest{RPCHeader: f.header, Term: 3, LastLogIndex: 9, LastLogTerm: 2,
						LeadershipTransfer: true}
					var answer raft.RequestVoteResponse
					if err := f.leader.RequestVote("s1", "s1", &vote, &answer); err != nil || !answer.Granted {
						t.Errorf("vote %+v, %v", answer, err)
					}
				})
				synctest.Wait() // it is about to be in term 3
				campaigned.Go(func() {
					if err := f.campaign(2); err == nil || !strings.Contains(err.Error(), "it is term 3") {
						t.Errorf("campaign after term 2: %v", err)
					}
				})
				synctest.Wait()
				close(store.may)
				wrote.Wait()
				asked.Wait()
				campaigned.Wait()
				synctest.Wait()
				f.expect(raft.Follower, 3)
				if err := f.campaign(3); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				f.expect(raft.Candidate, 4)
			})
		}
	}
}

// campaign makes it campaign after a term, and no later one.
func (f *follower) campaign(term uint64) error {
	return f.filter.Campaign(f.t.Context(), f.header, func() error {
		if now := f.raft.CurrentTerm(); now != term {
			return fmt.Errorf("it is term %d", now)
		}
		return nil
	})
}

func (f *follower) expect(state raft.RaftState, term uint64) {
	f.t.Helper()
	if f.raft.State() != state || f.raft.CurrentTerm() != term {
		f.t.Errorf("it is a %v of term %d, and should be a %v of term %d", f.raft.State(), f.raft.CurrentTerm(), state,
			term)
	}
}

// A caller that does not wait any longer does not want the election any more: while Raft wrote, the
// leader may have come back.
func TestACampaignIsCalledOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, store := newSlowFollower(t)
		taken := make(chan bool)
		go func() { taken <- f.append(2, 1, 1, 0, agreed(2, 2, 2)...) }()
		synctest.Wait() // it writes
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := f.filter.Campaign(ctx, f.header, func() error { return nil }); !errors.Is(err,
			context.DeadlineExceeded) {
			t.Errorf("campaign while the disk is slow: %v", err)
		}
		close(store.may)
		f.must(<-taken)
		synctest.Wait()
		f.expect(raft.Follower, 2)
	})
}

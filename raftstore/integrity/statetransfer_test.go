package integrity

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/disk"
	"github.com/barque/barque/raftstore/fsm"
	"github.com/barque/barque/raftstore/mvcc"
	"github.com/barque/barque/raftstore/peer"
	"github.com/barque/barque/raftstore/snapdir"
)

// asking is a server in quarantine that asks the leader, and has applied all of its log.
type asking struct {
	Server
	*snapdir.Store
	state  *mvcc.Store
	answer func() error
}

func (a *asking) State() *mvcc.Store { return a.state }

func (a *asking) TellLeader(context.Context, byte, any) error { return a.answer() }

func (a *asking) Snapshots() raft.SnapshotStore { return a.Store }

func (a *asking) SetAside(id string, why error) error { return a.Store.SetAside(id, why) }

func (a *asking) StepDown(error) {}

func (a *asking) AwaitApplied(context.Context, uint64) error { return nil }

// take writes a snapshot of an empty state that ends with an entry.
func take(t *testing.T, s *snapdir.Store, index uint64) (id string) {
	t.Helper()
	state, err := fsm.New(mvcc.New(mvcc.Limits{}), func(error) {}).Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	sink, err := s.Create(1, index, 1, raft.Configuration{}, 1, nil)
	if err == nil {
		err = state.Persist(sink)
	}
	if err != nil {
		t.Fatal(err)
	}
	return sink.ID()
}

func newSnapshots(t *testing.T) *snapdir.Store {
	s, err := snapdir.Open(snapdir.Options{Dir: t.TempDir(), Keep: 2})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestLostAnswer: a state that has come is taken though the leader's answer is lost, and not before
// the snapshot that was being written when the quarantine began. That one is set aside, too.
func TestLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader, own := newSnapshots(t), newSnapshots(t)
		meta, _, err := leader.Open(take(t, leader, 5))
		if err != nil {
			t.Fatal(err)
		}
		take(t, own, 2)
		asked, ready := 0, false
		server := &asking{Store: own, state: mvcc.New(mvcc.Limits{})}
		dir := t.TempDir()
		g := &Guard{Quarantine: &Quarantine{begun: make(chan struct{}), path: disk.QuarantinePath(dir)}, server: server,
			opts: Options{
				Dir: dir, Logger: slog.New(slog.DiscardHandler), CallTimeout: time.Second,
				OnNewState: func() { ready = true },
			}}
		g.persisting.RLock()
		g.isolate("because")
		server.answer = func() error {
			asked++
			_, state, err := leader.Open(meta.ID)
			if err != nil {
				return err
			}
			defer state.Close()
			return errors.Join(errors.New("the answer is lost"), g.TakeState(&raft.InstallSnapshotRequest{
				SnapshotVersion: 1, LastLogIndex: meta.Index, LastLogTerm: meta.Term, Size: meta.Size,
				Configuration:      raft.EncodeConfiguration(meta.Configuration),
				ConfigurationIndex: meta.ConfigurationIndex,
			}, state))
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			g.heal(t.Context())
		}()
		<-time.After(transferRetry + time.Millisecond)
		if err := g.Explain(); !strings.Contains(err.Error(), "still being written") || ready {
			t.Errorf("while a snapshot is written: %v, ready: %v", err, ready)
		}
		take(t, own, 3)
		g.persisting.RUnlock()
		<-done
		all, err := own.List()
		if err != nil || len(all) != 1 || all[0].Index != 5 {
			t.Errorf("snapshots %v, %v", all, err)
		}
		if _, err := os.Stat(g.path); asked != 1 || !ready || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("asked %d times, ready: %v, the mark: %v", asked, ready, err)
		}
	})
}

// TestLeaderOfAnotherVersion: a leader that does not know the question is asked again, more and
// more rarely, and the reason is logged.
func TestLeaderOfAnotherVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var asked []time.Duration
		began := time.Now()
		server := &asking{state: mvcc.New(mvcc.Limits{}), answer: func() error {
			asked = append(asked, time.Since(began))
			return peer.Refusedf("this server does not know requests of kind %d", peer.CallSendState)
		}}
		g := &Guard{Quarantine: &Quarantine{begun: make(chan struct{})}, server: server,
			opts: Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}}
		g.begin("because")
		done := make(chan struct{})
		go func() {
			defer close(done)
			g.heal(ctx)
		}()
		<-time.After(time.Minute)
		if err := g.Explain(); !strings.Contains(err.Error(),
			"because; it has no right state from the leader yet: the leader is of another version") {
			t.Errorf("it says %v", err)
		}
		cancel()
		<-done
		if len(asked) != 5 || asked[4] != 30*time.Second { // after 2, 4, 8 and 16 s
			t.Errorf("asked at %v", asked)
		}
		if kind, text := g.HandleSendState(t.Context(), []byte(`"b"`)); kind != peer.AnswerUnavailable ||
			!strings.Contains(string(text), "because") {
			t.Errorf("asked for its own state it answers %d, %s", kind, text)
		}
	})
}

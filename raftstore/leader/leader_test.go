package leader

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/autopilot"
	"github.com/barque/barque/raftstore/disk"
	"github.com/barque/barque/raftstore/election"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/logstore"
	"github.com/barque/barque/raftstore/mvcc"
)

// fake is everything around a Leadership: a Raft whose state a test sets, and the server "a", which
// votes with "b" and "c".
type fake struct {
	state      atomic.Uint32 // a raft.RaftState
	term       atomic.Uint64
	hangs      atomic.Bool
	sick       atomic.Bool // the server may not serve
	changed    chan struct{}
	transferTo atomic.Value // the ID of the target of the last transfer of leadership
	lost       []string
}

func (f *fake) State() raft.RaftState           { return raft.RaftState(f.state.Load()) }
func (f *fake) CurrentTerm() uint64             { return f.term.Load() }
func (f *fake) LastIndex() uint64               { return 1 }
func (f *fake) LeadershipTransfer() raft.Future { return f.LeadershipTransferToServer("", "") }
func (f *fake) LeadershipTransferToServer(id raft.ServerID, _ raft.ServerAddress) raft.Future {
	f.transferTo.Store(id)
	return done{}
}
func (f *fake) Ask(_ context.Context, question func() raft.Future) error { return question().Error() }

// done is a future without an error.
type done struct{}

func (done) Error() error { return nil }

func (f *fake) Check() error {
	if f.hangs.Load() {
		return logstore.ErrHangs
	}
	return nil
}
func (f *fake) Changed() <-chan struct{} { return f.changed }

func (f *fake) Leads(uint64)                                       {}
func (f *fake) Lost(_ uint64, why string)                          { f.lost = append(f.lost, why) }
func (f *fake) Disk()                                              {}
func (f *fake) Silent() ([]election.SilentMember, <-chan struct{}) { return nil, nil }

// server is the rest of the fake, whose State is not Raft's.
type server struct{ *fake }

func (s server) Members() []group.Member {
	return []group.Member{{ID: "a", Name: "a", Voter: true, Self: true}, {ID: "b", Name: "b", Voter: true},
		{ID: "c", Name: "c", Voter: true}}
}
func (s server) State() *mvcc.Store { return mvcc.New(mvcc.Limits{}) }
func (s server) Observe(context.Context) []autopilot.Server {
	return []autopilot.Server{{ID: "a", Voter: true, Leader: true, Answers: true},
		{ID: "b", Voter: true, Answers: true}, {ID: "c", Voter: true, Answers: true, Lag: 1}}
}
func (s server) MayServe() error {
	if s.sick.Load() {
		return errors.New("it is in quarantine")
	}
	return nil
}
func (s server) NoOp() raft.ApplyFuture      { return nil }
func (s server) FirstEntry() (uint64, error) { return s.term.Load(), nil }

// run calls test in a bubble with a Leadership that follows the fake. working is 1 while its work
// goes on.
func run(t *testing.T, test func(t *testing.T, f *fake, l *Leadership, working *atomic.Int32)) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{changed: make(chan struct{}, 1)}
		timeouts := group.Timeouts{}.WithDefaults()
		l := New(Options{ID: "a", Timeouts: timeouts, Logger: slog.New(slog.DiscardHandler)}, server{f})
		var working atomic.Int32
		work := func(ctx context.Context, _ uint64) {
			working.Add(1)
			defer working.Add(-1)
			<-ctx.Done()
		}
		l.Attach(Parts{Raft: f, Disk: f, Reserve: new(disk.Reserve), Elections: f, Work: Work{
			Elected: func(ctx context.Context) { <-ctx.Done() },
			Leading: []func(context.Context, uint64){work},
		}})
		stopped := make(chan struct{})
		followed := make(chan struct{})
		go func() {
			defer close(followed)
			l.Follow(t.Context(), stopped)
		}()
		defer func() {
			l.Close()
			l.Wait()
			close(stopped)
			<-followed
			if working.Load() != 0 {
				t.Error("work goes on after Wait")
			}
		}()
		test(t, f, l, &working)
	})
}

// elect makes the server the leader of the next term by Raft's word.
func (f *fake) elect(l *Leadership) {
	f.term.Add(1)
	f.state.Store(uint32(raft.Leader))
	l.Notify() <- true
	synctest.Wait()
}

// depose ends that.
func (f *fake) depose(l *Leadership) {
	f.state.Store(uint32(raft.Follower))
	l.Notify() <- false
	synctest.Wait()
}

func TestATermBeginsAndEnds(t *testing.T) {
	run(t, func(t *testing.T, f *fake, l *Leadership, working *atomic.Int32) {
		if l.Term() != 0 {
			t.Errorf("it leads in term %d and was not elected", l.Term())
		}
		f.elect(l)
		leading, term, err := l.Await(t.Context())
		if err != nil || term != 1 || l.Term() != 1 || working.Load() != 1 {
			t.Fatalf("elected: term %d, %d, %d at work: %v", term, l.Term(), working.Load(), err)
		}
		f.depose(l)
		if cause := context.Cause(leading); !errors.Is(cause, ErrEnded) ||
			!strings.Contains(cause.Error(), "it may be cut off") {
			t.Errorf("it was deposed, and the context ended with %v", cause)
		}
		if l.Term() != 0 || working.Load() != 0 || len(f.lost) != 1 {
			t.Errorf("deposed: term %d, %d at work, told of %q", l.Term(), working.Load(), f.lost)
		}
		f.elect(l)
		if l.Term() != 2 || working.Load() != 1 {
			t.Errorf("elected again: term %d, %d at work", l.Term(), working.Load())
		}
	})
}

// TestWhoIsClosedLeadsNoMore: neither by Raft's word nor by that of the disk.
func TestWhoIsClosedLeadsNoMore(t *testing.T) {
	run(t, func(t *testing.T, f *fake, l *Leadership, working *atomic.Int32) {
		f.elect(l)
		leading, _, err := l.Await(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		synctest.Wait()
		if cause := context.Cause(leading); !errors.Is(cause, kv.ErrClosed) {
			t.Errorf("it was closed, and the context ended with %v", cause)
		}
		f.elect(l)
		f.changed <- struct{}{}
		synctest.Wait()
		if l.Term() != 0 || working.Load() != 0 {
			t.Errorf("closed: term %d, %d at work", l.Term(), working.Load())
		}
		if _, _, err := l.Await(t.Context()); !errors.Is(err, kv.ErrClosed) {
			t.Errorf("who waits gets %v", err)
		}
	})
}

// TestADiskThatHangsEndsATerm: and the same term goes on when the disk is well and Raft has not
// elected another server.
func TestADiskThatHangsEndsATerm(t *testing.T) {
	run(t, func(t *testing.T, f *fake, l *Leadership, _ *atomic.Int32) {
		f.elect(l)
		leading, _, err := l.Await(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f.hangs.Store(true)
		f.changed <- struct{}{}
		synctest.Wait()
		if l.Term() != 0 || !errors.Is(context.Cause(leading), logstore.ErrHangs) || l.MayLead() == nil {
			t.Errorf("the disk hangs: term %d, %v, %v", l.Term(), context.Cause(leading), l.MayLead())
		}
		f.hangs.Store(false)
		f.changed <- struct{}{}
		synctest.Wait()
		if l.Term() != 1 || l.MayLead() != nil {
			t.Errorf("the disk is well: term %d, %v", l.Term(), l.MayLead())
		}
	})
}

// TestAQuarantinedLeaderDoesNoWork: it is elected, and may only hand over.
func TestAQuarantinedLeaderDoesNoWork(t *testing.T) {
	run(t, func(t *testing.T, f *fake, l *Leadership, working *atomic.Int32) {
		f.sick.Store(true)
		f.elect(l)
		<-time.After(time.Second)
		if l.Term() != 0 || working.Load() != 0 {
			t.Errorf("term %d, %d at work", l.Term(), working.Load())
		}
		if err := l.HandOver(t.Context(), "it is in quarantine", true); err != nil ||
			f.transferTo.Load() != raft.ServerID("b") {
			t.Errorf("leadership goes to %v: %v", f.transferTo.Load(), err)
		}
	})
}

// TestWhyItWasDeposed: a server that has handed over says to which one, and why.
func TestWhyItWasDeposed(t *testing.T) {
	run(t, func(t *testing.T, f *fake, l *Leadership, _ *atomic.Int32) {
		f.elect(l)
		if err := l.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.depose(l)
		f.elect(l)
		f.term.Add(1)
		f.depose(l)
		want := []string{"it has handed over to b, because it stops", "another server campaigns, or leads, in term 3"}
		if strings.Join(f.lost, "\n") != strings.Join(want, "\n") {
			t.Errorf("it says %q, want %q", f.lost, want)
		}
		if err := l.Leave(t.Context()); err != nil {
			t.Errorf("who does not lead hands over: %v", err)
		}
	})
}

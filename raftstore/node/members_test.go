package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/autopilot"
	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/peer"
)

// TestADemotionIsDoneWhenItIsCommitted: an operator may switch the server off once its demotion is
// reported as done.
func TestADemotionIsDoneWhenItIsCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		leader := s.leader(-1)
		demoted, slow := (leader+1)%3, (leader+2)%3
		id := s.nodes[demoted].ID()
		voter := func() bool { m, _ := s.nodes[leader].member(id); return m.Voter }
		s.disks[slow].hang() // the decision needs it not, but the configuration without the other one does
		answer := make(chan error, 1)
		go func() { answer <- s.nodes[leader].Apply(s.ctx, autopilot.Change{Kind: autopilot.DemoteMember, ID: id}) }()
		s.await("the leader's log says so", func() bool { return !voter() })
		select {
		case err := <-answer:
			t.Errorf("it is called done (%v), and only the leader has it", err)
			answer <- err
		case <-time.After(time.Second):
		}
		s.disks[slow].recover()
		if err := <-answer; err != nil {
			t.Error(err)
		}
		for i, n := range s.nodes {
			s.await("all have applied it",
				func() bool { _, voter, _ := n.autopilot.Committed().Place(id); return !voter })
			if member, _, _ := n.autopilot.Committed().Place(id); !member {
				t.Errorf("server %d takes it for no member", i)
			}
		}
	})
}

// TestADemotionIsDoneWhenItIsSettled: that the old majority has committed it is not enough. Raft's
// own race would show that in three runs of a hundred only.
func TestADemotionIsDoneWhenItIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		leader := s.leader(-1)
		n, id := s.nodes[leader], s.nodes[(leader+1)%3].ID()
		change := autopilot.Change{Kind: autopilot.DemoteMember, ID: id}
		if err := n.autopilot.Lock(s.ctx); err != nil { // so the autopilot cannot carry it out
			t.Fatal(err)
		}
		defer n.autopilot.Unlock()
		if err := n.autopilot.Decide(s.ctx, n.leader.Term(), id, group.Decision{},
			group.Decision{State: group.Standby, Name: "s"}); err != nil {
			t.Fatal(err)
		}
		without := n.raft.GetConfiguration().Configuration()
		without.Servers = slices.Clone(without.Servers)
		for i := range without.Servers {
			if without.Servers[i].ID == raft.ServerID(id) {
				without.Servers[i].Suffrage = raft.Nonvoter
			}
		}
		synctest.Wait()
		n.autopilot.Committed().Note(
			[]*raft.Log{
				{Index: n.raft.AppliedIndex(), Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(without)}})
		if done, err := n.autopilot.Departed(s.ctx, change); done || err != nil {
			t.Errorf("with no entry behind it: done %v, %v", done, err)
		}
		if _, err := (wiring{n}).FirstEntry(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // Raft answers before it says that it is applied
		if done, err := n.autopilot.Departed(s.ctx, change); !done || err != nil {
			t.Errorf("with an entry behind it: done %v, %v", done, err)
		}
	})
}

// TestADemotionIsDoneInAnIdleGroup: the leader, one of an older version, writes nothing behind the
// configuration, and no client writes.
func TestADemotionIsDoneInAnIdleGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		leader := s.leader(-1)
		n, id := s.nodes[leader], s.nodes[(leader+1)%3].ID()
		if err := n.autopilot.Lock(s.ctx); err != nil { // the autopilot waits with its step, so it settles nothing
			t.Fatal(err)
		}
		defer n.autopilot.Unlock()
		if err := n.autopilot.Decide(s.ctx, n.leader.Term(), id, group.Decision{},
			group.Decision{State: group.Standby, Name: "s"}); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Second)
		if err := n.raft.DemoteVoter(raft.ServerID(id), 0, 0).Error(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
		defer cancel()
		if err := s.nodes[(leader+2)%3].autopilot.AwaitDeparture(ctx,
			autopilot.Change{Kind: autopilot.DemoteMember, ID: id}); err != nil {
			t.Errorf("in an idle group: %v", err)
		}
	})
}

// TestAMemberIsOneWhenThatIsCommitted: a leader that sees a configuration only in its own log does
// not call it done.
func TestAMemberIsOneWhenThatIsCommitted(t *testing.T) {
	for _, kind := range []autopilot.ChangeKind{autopilot.AddMember, autopilot.PromoteMember} {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSickbay(t, 3)
				leader := s.leader(-1)
				n, id := s.nodes[leader], s.nodes[(leader+1)%3].ID()
				synctest.Wait()
				without := n.raft.GetConfiguration().Configuration()
				without.Servers = slices.DeleteFunc(slices.Clone(without.Servers),
					func(s raft.Server) bool { return string(s.ID) == id })
				n.autopilot.Committed().Note(
					[]*raft.Log{
						{Index: n.raft.AppliedIndex(), Type: raft.LogConfiguration,
							Data: raft.EncodeConfiguration(without)}})
				m, _ := n.member(id)
				if err := n.Apply(s.ctx, autopilot.Change{Kind: kind, ID: id, Address: m.Address}); err != nil {
					t.Fatal(err)
				}
				if member, voter, _ := n.autopilot.Committed().Place(id); !member || !voter {
					t.Errorf("it is called done: member %v, voter %v", member, voter)
				}
			})
		})
	}
}

// TestWhatANewerVersionRecordedIsNoEndlessWait: the caller learns at once that this server does not
// know the decision.
func TestWhatANewerVersionRecordedIsNoEndlessWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		leader := s.leader(-1)
		n, id := s.nodes[leader], s.nodes[(leader+1)%3].ID()
		txn := kv.Txn{
			Ops: []kv.Op{{Kind: kv.Put, Key: group.DecisionPrefix + id, Value: []byte(`{"state":{"kind":"witness"}}`)}}}
		if _, err := n.Propose(s.ctx, &command.Request{Kind: command.KindTxn, Txn: txn}); err != nil {
			t.Fatal(err)
		}
		err := n.autopilot.AwaitDeparture(s.ctx, autopilot.Change{Kind: autopilot.DemoteMember, ID: id})
		if !errors.Is(err, kv.ErrUnknownOutcome) || !strings.Contains(err.Error(), "newer version") ||
			s.ctx.Err() != nil {
			t.Errorf("who waits is told %v", err)
		}
	})
}

// TestConfigurationsAreSettled: also without writes of clients.
func TestConfigurationsAreSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		for i, n := range s.nodes {
			s.await(fmt.Sprintf("server %d knows that the configuration is settled", i),
				func() bool { return n.autopilot.Committed().Settled(n.raft.AppliedIndex()) })
		}
		<-time.After(time.Minute) // the changes that were begun are over
		n := s.nodes[s.leader(-1)]
		last := n.raft.LastIndex()
		<-time.After(time.Minute)
		if now := n.raft.LastIndex(); now != last {
			t.Errorf("in a minute in which nothing happens %d entries are written", now-last)
		}
	})
}

// TestAPromotionTakesADemotionBack: the caller of the demotion gets the outcome.
func TestAPromotionTakesADemotionBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		leader := s.leader(-1)
		n, id := s.nodes[leader], s.nodes[(leader+1)%3].ID()
		if err := n.autopilot.Lock(s.ctx); err != nil { // so the autopilot cannot carry it out
			t.Fatal(err)
		}
		if err := n.autopilot.Decide(s.ctx, n.leader.Term(), id, group.Decision{},
			group.Decision{State: group.Standby, Name: "s"}); err != nil {
			t.Fatal(err)
		}
		answer := make(chan error, 1)
		go func() {
			answer <- n.autopilot.AwaitDeparture(s.ctx, autopilot.Change{Kind: autopilot.DemoteMember, ID: id})
		}()
		<-time.After(time.Second)
		// as Promote does
		if err := n.autopilot.Decide(s.ctx, n.leader.Term(), id, n.decision(id), group.Decision{}); err != nil {
			t.Fatal(err)
		}
		n.autopilot.Unlock()
		var refused *peer.RefusedError
		if err := <-answer; !errors.As(err, &refused) || !strings.Contains(err.Error(), "promoted it meanwhile") {
			t.Errorf("it is told %v", err)
		}
	})
}

// TestABlockedDepartureWaits: a departure is recorded, and then the quorum needs the server. Each
// waiting caller learns it, at the leader and elsewhere; the departure is carried out when it can
// be, or taken back by a promotion.
func TestABlockedDepartureWaits(t *testing.T) {
	for name, c := range map[string]struct {
		change autopilot.Change
		to     group.State
		back   bool // a promotion takes it back
	}{
		"a removal":              {autopilot.Change{Kind: autopilot.RemoveMember}, group.Leaving, false},
		"a demotion":             {autopilot.Change{Kind: autopilot.DemoteMember}, group.Standby, false},
		"a removal, taken back":  {autopilot.Change{Kind: autopilot.RemoveMember}, group.Leaving, true},
		"a demotion, taken back": {autopilot.Change{Kind: autopilot.DemoteMember}, group.Standby, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSickbay(t, 3)
				leader := s.leader(-1)
				n, goes, away := s.nodes[leader], s.nodes[(leader+1)%3], (leader+2)%3
				change := c.change
				change.ID = goes.ID()
				if err := n.autopilot.Lock(s.ctx); err != nil { // so the autopilot cannot carry it out yet
					t.Fatal(err)
				}
				if err := n.autopilot.Decide(s.ctx, n.leader.Term(), goes.ID(), group.Decision{},
					group.Decision{State: c.to, Name: "s"}); err != nil {
					t.Fatal(err)
				}
				s.net.Mute(fmt.Sprintf("s%d:1", away))
				<-time.After(10 * time.Second)
				n.autopilot.Unlock()
				for _, asked := range []*Node{n, goes} {
					began := time.Now()
					err := asked.Apply(s.ctx, change)
					var pending *autopilot.PendingError
					if !errors.As(err, &pending) || !strings.Contains(err.Error(), "only 1 of the 2 voters") {
						t.Errorf("who waits is told %v", err)
					}
					if waited := time.Since(began); waited > 2*autopilot.PendingAfter {
						t.Errorf("who waits is told after %v", waited)
					}
				}
				if c.back {
					if err := n.Apply(s.ctx,
						autopilot.Change{Kind: autopilot.PromoteMember, ID: goes.ID()}); err != nil {
						t.Fatal(err)
					}
				}
				s.net.Heal()
				if c.back {
					<-time.After(time.Minute)
					if m, _ := n.member(goes.ID()); !m.Voter || n.decision(goes.ID()).State != group.Regular {
						t.Errorf("it was taken back, and it is %+v, %q", m, n.decision(goes.ID()).State)
					}
				} else if err := n.Apply(s.ctx, change); err != nil {
					t.Errorf("when it can be done: %v", err)
				}
			})
		})
	}
}

// TestAStepThatIsOutdatedIsNotTaken: a promotion comes between the autopilot's look and its step.
func TestAStepThatIsOutdatedIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		leader := s.leader(-1)
		n, id := s.nodes[leader], s.nodes[(leader+1)%3].ID()
		step := autopilot.Step{Kind: autopilot.Remove, Server: autopilot.Server{ID: id, State: group.Leaving}}
		if err := autopilot.NewObserver(n.autopilot, n.leader.Term()).Take(s.ctx, step); err != nil {
			t.Fatal(err)
		}
		if m, ok := n.member(id); !ok || !m.Voter {
			t.Errorf("a server that is to stay is taken out")
		}
	})
}

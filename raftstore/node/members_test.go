package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/steward"
)

// TestADemotionIsDoneWhenItIsCommitted: who was told that a server has lost its vote may switch it off.
func TestADemotionIsDoneWhenItIsCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		leader := s.leader(-1)
		demoted, slow := (leader+1)%3, (leader+2)%3
		id := s.nodes[demoted].ID()
		voter := func() bool { m, _ := s.nodes[leader].member(id); return m.Voter }
		s.disks[slow].hang() // the decision needs it not, but the configuration without the other one does
		answer := make(chan error, 1)
		go func() { answer <- s.nodes[leader].Apply(s.ctx, Change{Kind: DemoteMember, ID: id}) }()
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
			s.await("all have applied it", func() bool { _, voter, _ := n.committed.place(id); return !voter })
			if member, _, _ := n.committed.place(id); !member {
				t.Errorf("server %d takes it for no member", i)
			}
		}
	})
}

// TestADemotionIsDoneWhenItIsSettled: that the old majority has committed it is not enough. Raft's own race would show that in three runs
// of a hundred only.
func TestADemotionIsDoneWhenItIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		leader := s.leader(-1)
		n, id := s.nodes[leader], s.nodes[(leader+1)%3].ID()
		change := Change{Kind: DemoteMember, ID: id}
		if err := n.changing.enter(s.ctx); err != nil { // so the steward cannot carry it out
			t.Fatal(err)
		}
		defer n.changing.leave()
		if err := n.decide(s.ctx, n.leadership.term(), id, standing{}, standing{State: steward.Standby, Name: "s"}); err != nil {
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
		n.committed.note([]*raft.Log{{Index: n.raft.AppliedIndex(), Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(without)}})
		if done, err := n.departed(s.ctx, change); done || err != nil {
			t.Errorf("with no entry behind it: done %v, %v", done, err)
		}
		if _, err := n.mark(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // Raft answers before it says that it is applied
		if done, err := n.departed(s.ctx, change); !done || err != nil {
			t.Errorf("with an entry behind it: done %v, %v", done, err)
		}
	})
}

// TestConfigurationsAreSettled: also where nobody writes.
func TestConfigurationsAreSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		for i, n := range s.nodes {
			s.await(fmt.Sprintf("server %d knows that the configuration is settled", i), func() bool { return n.committed.settled(n.raft.AppliedIndex()) })
		}
		<-time.After(time.Minute) // what was begun is over
		n := s.nodes[s.leader(-1)]
		last := n.raft.LastIndex()
		<-time.After(time.Minute)
		if now := n.raft.LastIndex(); now != last {
			t.Errorf("in a minute in which nothing happens %d entries are written", now-last)
		}
	})
}

// TestAPromotionTakesADemotionBack: the one who demoted is told what became of it.
func TestAPromotionTakesADemotionBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		leader := s.leader(-1)
		n, id := s.nodes[leader], s.nodes[(leader+1)%3].ID()
		if err := n.changing.enter(s.ctx); err != nil { // so the steward cannot carry it out
			t.Fatal(err)
		}
		if err := n.decide(s.ctx, n.leadership.term(), id, standing{}, standing{State: steward.Standby, Name: "s"}); err != nil {
			t.Fatal(err)
		}
		answer := make(chan error, 1)
		go func() { answer <- n.awaitDeparture(s.ctx, Change{Kind: DemoteMember, ID: id}) }()
		<-time.After(time.Second)
		if err := n.decide(s.ctx, n.leadership.term(), id, n.standing(id), standing{}); err != nil { // as Promote does
			t.Fatal(err)
		}
		n.changing.leave()
		var refused *RefusedError
		if err := <-answer; !errors.As(err, &refused) || !strings.Contains(err.Error(), "promoted it meanwhile") {
			t.Errorf("it is told %v", err)
		}
	})
}

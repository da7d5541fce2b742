package node

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/steward"
)

// TestADecisionOfAnEarlierTerm has a server that led decide something that rests on what it saw then: on a
// configuration, for one, whose last change was never committed.
func TestADecisionOfAnEarlierTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		before := s.leader(-1)
		old := s.nodes[before]
		term := old.leadership.term()
		if err := old.bequeath("the test wants it", true); err != nil {
			t.Fatal(err)
		}
		now := s.nodes[s.leader(before)]
		id := s.nodes[3-before-index(s, now)].id.ServerID
		s.await("it knows who leads", func() bool { _, local, err := old.leader(); return err == nil && !local })
		if err := old.decide(s.ctx, term, id, standing{}, standing{State: Removed}); !errors.Is(err, kv.ErrUnavailable) {
			t.Errorf("a decision of an earlier term: %v", err)
		}
		if got := now.standing(id); got.State != steward.Regular {
			t.Errorf("server %s is %s by the word of one who does not lead", id, got.State)
		}
		if err := now.decide(s.ctx, now.leadership.term(), id, standing{}, standing{State: steward.Standby}); err != nil {
			t.Errorf("a decision of this term: %v", err)
		}
	})
}

func index(s *sickbay, of *Node) int {
	for i, n := range s.nodes {
		if n == of {
			return i
		}
	}
	return -1
}

// TestFrozenLeaderTakesNobodyForDead stops the clock of the leader's process between two looks.
func TestFrozenLeaderTakesNobodyForDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		leader := s.leader(-1)
		o := &observer{
			node: s.nodes[leader], answered: make(map[string]time.Time), stable: make(map[string]time.Time), blocked: make(map[string]time.Time),
		}
		mute := s.nodes[(leader+1)%3]
		o.observe(s.ctx)
		if err := mute.Close(); err != nil {
			t.Fatal(err)
		}
		silent := func() time.Duration {
			for _, server := range o.observe(s.ctx) {
				if server.ID == mute.id.ServerID && !server.Answers {
					return server.Silent
				}
			}
			t.Fatal("it answers")
			return 0
		}
		<-time.After(10 * time.Minute) // in which nobody was asked
		if got := silent(); got > time.Minute {
			t.Errorf("it was asked for the first time, and is said to have been silent for %v", got)
		}
		for range 100 {
			<-time.After(idleEvery)
			silent()
		}
		if got := silent(); got < 100*idleEvery {
			t.Errorf("it has not answered for %v, and is said to have been silent for %v", 100*idleEvery, got)
		}
	})
}

func TestAStandingOfANewerVersionIsLeftAlone(t *testing.T) {
	s := readStanding(kv.Item{Value: []byte(`{"state":{"kind":"witness"}}`), ModRevision: 7})
	servers := []steward.Server{
		{ID: "a", Voter: true, Leader: true, Answers: true}, {ID: "b", Voter: true, Answers: true},
		{ID: "c", Voter: true, Answers: true, Standing: s.State}, {ID: "d", Answers: true, Standing: s.State},
	}
	if step, due, _ := steward.Decide(servers, steward.Policy{}); due || s.revision != 7 {
		t.Errorf("%+v leads to %+v", s, step)
	}
}

package autopilot

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
)

// TestTheLogRepeatsItselfRarely: a step that fails at each look is logged once a minute.
func TestTheLogRepeatsItselfRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := NewObserver(nil, 1)
		told := 0
		for range 600 {
			if o.mayTell("remove", "c") {
				told++
			}
			<-time.After(time.Second)
		}
		if told != 10 {
			t.Errorf("told %d times in ten minutes", told)
		}
		if !o.mayTell("failed remove", "c") || !o.mayTell("remove", "d") {
			t.Error("what is new is not told")
		}
	})
}

func TestADecisionOfANewerVersionIsLeftAlone(t *testing.T) {
	s := group.ReadDecision(kv.Item{Value: []byte(`{"state":{"kind":"witness"}}`), ModRevision: 7})
	servers := []Server{
		{ID: "a", Voter: true, Leader: true, Answers: true}, {ID: "b", Voter: true, Answers: true},
		{ID: "c", Voter: true, Answers: true, State: s.State}, {ID: "d", Answers: true, State: s.State},
	}
	if step, due, _ := Decide(servers, Policy{}); due || s.Revision != 7 {
		t.Errorf("%+v leads to %+v", s, step)
	}
}

// snapshotList is a store of snapshots that can only be listed.
type snapshotList struct {
	raft.SnapshotStore
	all []*raft.SnapshotMeta
	err error
}

func (s snapshotList) List() ([]*raft.SnapshotMeta, error) { return s.all, s.err }

// TestCommittedAfterASnapshotThatCannotBeRead: the places of servers are unknown then, instead of
// those in an older configuration.
func TestCommittedAfterASnapshotThatCannotBeRead(t *testing.T) {
	var c Committed
	meta := &raft.SnapshotMeta{
		Configuration: raft.Configuration{Servers: []raft.Server{{ID: "s1", Suffrage: raft.Voter}}}}
	if err := c.Load(snapshotList{all: []*raft.SnapshotMeta{meta}}); err != nil {
		t.Fatal(err)
	}
	if member, voter, known := c.Place("s1"); !member || !voter || !known {
		t.Errorf("s1 is a member: %v, a voter: %v, known: %v", member, voter, known)
	}
	if err := c.Load(snapshotList{err: errors.New("no disk")}); err == nil {
		t.Error("the error is lost")
	}
	if _, _, known := c.Place("s1"); known {
		t.Error("an older configuration than the state's is told")
	}
}

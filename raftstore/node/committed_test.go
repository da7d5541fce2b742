package node

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// snapshotList is a store of snapshots that can only be listed.
type snapshotList struct {
	raft.SnapshotStore
	all []*raft.SnapshotMeta
	err error
}

func (s snapshotList) List() ([]*raft.SnapshotMeta, error) { return s.all, s.err }

// TestCommittedAfterASnapshotThatCannotBeRead: nobody is told that a server has a vote, or none, by
// what was before.
func TestCommittedAfterASnapshotThatCannotBeRead(t *testing.T) {
	var c committed
	meta := &raft.SnapshotMeta{Configuration: raft.Configuration{Servers: []raft.Server{{ID: "s1", Suffrage: raft.Voter}}}}
	if err := c.Load(snapshotList{all: []*raft.SnapshotMeta{meta}}); err != nil {
		t.Fatal(err)
	}
	if member, voter, known := c.place("s1"); !member || !voter || !known {
		t.Errorf("s1 is a member: %v, a voter: %v, known: %v", member, voter, known)
	}
	if err := c.Load(snapshotList{err: errors.New("no disk")}); err == nil {
		t.Error("the error is lost")
	}
	if _, _, known := c.place("s1"); known {
		t.Error("an older configuration than the state's is told")
	}
}

// stuck is a change of the configuration that Raft commits with the next entry.
type stuck struct {
	node  *Node
	after uint64
}

// Error implements raft.Future.
func (s *stuck) Error() error {
	for s.node.raft.AppliedIndex() <= s.after {
		<-time.After(time.Millisecond)
	}
	return nil
}

// TestAChangeThatWaitsForAnEntryGetsOne: nobody writes, and it is carried out.
func TestAChangeThatWaitsForAnEntryGetsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		n := s.nodes[s.leader(-1)]
		<-time.After(time.Minute)
		change, began := &stuck{n, n.raft.LastIndex()}, time.Now()
		done := make(chan error, 1)
		go func() { done <- n.configured(change) }() // ends with the bubble
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("it waits for ever")
		}
		if wrote := n.raft.LastIndex() - change.after; wrote != 1 {
			t.Errorf("%d entries in %s, want one", wrote, time.Since(began))
		}
	})
}

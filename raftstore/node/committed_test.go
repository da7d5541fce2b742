package node

import (
	"errors"
	"testing"

	"github.com/hashicorp/raft"
)

// snapshotList is a store of snapshots that can only be listed.
type snapshotList struct {
	raft.SnapshotStore
	all []*raft.SnapshotMeta
	err error
}

func (s snapshotList) List() ([]*raft.SnapshotMeta, error) { return s.all, s.err }

// TestCommittedAfterASnapshotThatCannotBeRead: nobody is told that a server has a vote, or none, by what was before.
func TestCommittedAfterASnapshotThatCannotBeRead(t *testing.T) {
	var c committed
	meta := &raft.SnapshotMeta{Configuration: raft.Configuration{Servers: []raft.Server{{ID: "s1", Suffrage: raft.Voter}}}}
	if err := c.load(snapshotList{all: []*raft.SnapshotMeta{meta}}); err != nil {
		t.Fatal(err)
	}
	if member, voter, known := c.place("s1"); !member || !voter || !known {
		t.Errorf("s1 is a member: %v, a voter: %v, known: %v", member, voter, known)
	}
	if err := c.load(snapshotList{err: errors.New("no disk")}); err == nil {
		t.Error("the error is lost")
	}
	if _, _, known := c.place("s1"); known {
		t.Error("an older configuration than the state's is told")
	}
}

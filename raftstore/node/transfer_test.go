package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
)

// TestTransferTwice: a server that was asked twice to hand leadership to another one, whose disk
// hangs, is a leader like any other when it is elected again.
func TestTransferTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		leader := s.leader(-1)
		ill, transferee := (leader+1)%3, (leader+2)%3
		n := s.nodes[leader]
		member := func(i int) group.Member {
			m, _ := n.member(s.nodes[i].id.ServerID)
			return m
		}
		s.disks[ill].hang()
		if err := s.write(leader); err != nil { // which the ill one does not get
			t.Fatal(err)
		}
		for range 3 {
			if err := n.leader.Transfer(s.ctx, member(ill), "the test wants it"); !errors.Is(err, kv.ErrUnavailable) {
				t.Fatalf("leadership goes to a server whose disk hangs: %v", err)
			}
		}
		ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
		defer cancel()
		if _, err := n.ReadRevision(ctx); err != nil {
			t.Errorf("after the attempts, with nothing written since: %v", err)
		}
		if err := n.leader.Transfer(s.ctx, member(transferee), "the test wants it"); err != nil {
			t.Fatal(err)
		}
		s.await("the transferee leads", func() bool { return s.nodes[transferee].leader.Term() != 0 })
		s.disks[ill].recover()
		back, _ := s.nodes[transferee].member(n.id.ServerID)
		s.await("it goes back",
			func() bool { return s.nodes[transferee].leader.Transfer(s.ctx, back, "the test wants it") == nil })
		s.await("the first one leads", func() bool { return n.leader.Term() != 0 })
		if err := s.write(leader); err != nil {
			t.Errorf("it leads and takes no write: %v", err)
		}
	})
}

// TestTransferWhileTheDiskHangs: a caller with a time-out of a second does not wait until the
// leader's disk comes back.
func TestTransferWhileTheDiskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		leader := s.leader(-1)
		transferee, _ := s.nodes[leader].member(s.nodes[(leader+1)%3].id.ServerID)
		s.disks[leader].hang()
		stuck := s.nodes[leader].raft.Apply(nil, 0) // Raft writes it, and handles no message meanwhile
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := s.nodes[leader].leader.Transfer(ctx, transferee,
			"the test wants it"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, kv.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
		s.disks[leader].recover()
		_ = stuck.Error() // whether it is committed does not matter
	})
}

package node

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/barque/barque/raftstore/readindex"
)

// TestTheQuestionOfAReadIsAnAck looks when the leader answers a server that reads without asking
// others.
func TestTheQuestionOfAReadIsAnAck(t *testing.T) {
	for size, enough := range map[int]bool{3: true, 5: false} {
		synctest.Test(t, func(t *testing.T) {
			s := newSickbay(t, size)
			leader := s.leader(-1)
			n, follower := s.nodes[leader], s.nodes[(leader+1)%size]
			if err := s.write((leader + 1) % size); err != nil {
				t.Fatal(err)
			}
			term := n.leader.Term()
			for name, c := range map[string]struct {
				node *Node
				ack  readindex.Ack
				want bool
			}{
				"a voter":                         {n, readindex.Ack{Term: term, ID: follower.id.ServerID}, enough},
				"a voter that has not heard":      {n, readindex.Ack{Term: term - 1, ID: follower.id.ServerID}, enough},
				"a voter that hears another":      {n, readindex.Ack{Term: term + 1, ID: follower.id.ServerID}, false},
				"a server that is no member":      {n, readindex.Ack{Term: term, ID: "unknown"}, false},
				"the leader itself":               {n, readindex.Ack{Term: term, ID: n.id.ServerID}, false},
				"a voter that asks the wrong one": {follower, readindex.Ack{Term: term, ID: n.id.ServerID}, false},
			} {
				revision, ok := c.node.reads.ConfirmBy(readindex.DecodeAck(c.ack.Encode()))
				if ok != c.want || ok && revision != n.state.Revision() {
					t.Errorf("%d servers: %s: revision %d, %v, want %v", size, name, revision, ok, c.want)
				}
			}
			if _, ok := n.reads.ConfirmBy(readindex.DecodeAck(nil)); ok {
				t.Errorf("%d servers: who says nothing is believed", size)
			}
			s.disks[leader].hang()
			var writing sync.WaitGroup
			writing.Go(func() { s.write((leader + 1) % size) }) // ends when another server leads, or the disk is well
			s.await("the disk hangs", func() bool { return n.storage.Log.Disk().Check() != nil })
			if _, ok := n.reads.ConfirmBy(readindex.Ack{Term: term, ID: follower.id.ServerID}); ok {
				t.Errorf("%d servers: a leader whose disk hangs confirms a read", size)
			}
			s.disks[leader].recover()
			writing.Wait()
		})
	}
}

package node

import (
	"testing"
	"testing/synctest"
	"time"
)

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

// TestAChangeThatWaitsForAnEntryGetsOne: it is carried out without any write of a client.
func TestAChangeThatWaitsForAnEntryGetsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		n := s.nodes[s.leader(-1)]
		<-time.After(time.Minute)
		change, began := &stuck{n, n.raft.LastIndex()}, time.Now()
		done := make(chan error, 1)
		go func() { done <- n.autopilot.Configured(change) }() // ends with the bubble
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

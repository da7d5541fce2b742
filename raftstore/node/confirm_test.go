package node

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
)

func newCensus(running *sync.WaitGroup, voters int, termOf func(addr string) (uint64, error)) *census {
	var members []group.Member
	for i := range voters {
		members = append(members, group.Member{Address: string(rune('a' + i)), Voter: true, Self: i == 0})
	}
	members = append(members, group.Member{Address: "nonvoter"})
	return &census{members: func() []group.Member { return members }, termOf: termOf, running: running, waiting: make(map[string][]*ballot)}
}

func TestCensus(t *testing.T) {
	down := errors.New("down")
	for name, c := range map[string]struct {
		voters int
		terms  map[string]uint64 // the others that answer
		want   error
	}{
		"alone":               {1, nil, nil},
		"all agree":           {3, map[string]uint64{"b": 5, "c": 5}, nil},
		"one is down":         {3, map[string]uint64{"c": 5}, nil},
		"one has not heard":   {3, map[string]uint64{"c": 4}, nil},
		"both are down":       {3, nil, kv.ErrUnavailable},
		"two of five answer":  {5, map[string]uint64{"b": 5}, kv.ErrUnavailable},
		"another was elected": {3, map[string]uint64{"b": 6, "c": 6}, group.ErrNoLeader},
	} {
		var running sync.WaitGroup
		census := newCensus(&running, c.voters, func(addr string) (uint64, error) {
			if term, ok := c.terms[addr]; ok {
				return term, nil
			}
			return 0, down
		})
		if err := census.take(t.Context(), 5); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		running.Wait()
	}
}

// TestCensusCountsNoOldAnswer begins a census while answers to an earlier one are on their way.
// They say nothing about now.
func TestCensusCountsNoOldAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running sync.WaitGroup
		answers := make(chan uint64)
		census := newCensus(&running, 3, func(string) (uint64, error) { return <-answers, nil })
		ctx, cancel := context.WithCancel(t.Context())
		go census.take(ctx, 5)
		synctest.Wait() // both voters have been asked

		second := make(chan error, 1)
		go func() { second <- census.take(t.Context(), 5) }()
		synctest.Wait()
		answers <- 5 // from before the second one began
		answers <- 5
		synctest.Wait()
		select {
		case err := <-second:
			t.Fatalf("decided by old answers: %v", err)
		default:
		}
		answers <- 6
		answers <- 6
		if err := <-second; !errors.Is(err, group.ErrNoLeader) {
			t.Errorf("%v, want %v", err, group.ErrNoLeader)
		}
		cancel()
		running.Wait()
	})
}

// TestWhoAsksForAReadVotes looks when the leader answers a server that reads without asking others.
func TestWhoAsksForAReadVotes(t *testing.T) {
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
				vote readVote
				want bool
			}{
				"a voter":                         {n, readVote{term, follower.id.ServerID}, enough},
				"a voter that has not heard":      {n, readVote{term - 1, follower.id.ServerID}, enough},
				"a voter that hears another":      {n, readVote{term + 1, follower.id.ServerID}, false},
				"a server that is no member":      {n, readVote{term, "stranger"}, false},
				"the leader itself":               {n, readVote{term, n.id.ServerID}, false},
				"a voter that asks the wrong one": {follower, readVote{term, n.id.ServerID}, false},
			} {
				revision, ok := c.node.confirmBy(decodeReadVote(c.vote.encode()))
				if ok != c.want || ok && revision != n.state.Revision() {
					t.Errorf("%d servers: %s: revision %d, %v, want %v", size, name, revision, ok, c.want)
				}
			}
			if _, ok := n.confirmBy(decodeReadVote(nil)); ok {
				t.Errorf("%d servers: who says nothing is believed", size)
			}
			s.disks[leader].hang()
			var writing sync.WaitGroup
			writing.Go(func() { s.write((leader + 1) % size) }) // ends when another server leads, or the disk is well
			s.await("the disk hangs", func() bool { return n.storage.Log.Disk().Check() != nil })
			if _, ok := n.confirmBy(readVote{term, follower.id.ServerID}); ok {
				t.Errorf("%d servers: a leader whose disk hangs confirms a read", size)
			}
			s.disks[leader].recover()
			writing.Wait()
		})
	}
}

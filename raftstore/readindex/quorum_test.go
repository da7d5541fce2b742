package readindex

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
)

func newQuorum(voters int, termOf func(addr string) (uint64, error)) *quorum {
	var members []group.Member
	for i := range voters {
		members = append(members, group.Member{Address: string(rune('a' + i)), Voter: true, Self: i == 0})
	}
	members = append(members, group.Member{Address: "nonvoter"})
	return &quorum{members: func() []group.Member { return members }, termOf: termOf, waiting: make(map[string][]*acks)}
}

func TestQuorum(t *testing.T) {
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
		q := newQuorum(c.voters, func(addr string) (uint64, error) {
			if term, ok := c.terms[addr]; ok {
				return term, nil
			}
			return 0, down
		})
		if err := q.take(t.Context(), 5); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		q.running.Wait()
	}
}

// TestOldAnswersDoNotCount asks a quorum while answers to an earlier question are on their way.
// They say nothing about now.
func TestOldAnswersDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan uint64)
		q := newQuorum(3, func(string) (uint64, error) { return <-answers, nil })
		ctx, cancel := context.WithCancel(t.Context())
		go q.take(ctx, 5)
		synctest.Wait() // both voters have been asked

		second := make(chan error, 1)
		go func() { second <- q.take(t.Context(), 5) }()
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
		q.running.Wait()
	})
}

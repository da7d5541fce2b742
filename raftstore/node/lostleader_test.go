package node

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// TestSplitVotesAreNotWaitedFor has two of four survivors stand for election at once, whom two vote for. The others
// do not wait until Raft's time-outs have passed, nor do they stand both at once. A vote may be split time and again, and
// Raft's own time-out may come into that: in two rounds of ten that is bad luck.
func TestSplitVotesAreNotWaitedFor(t *testing.T) {
	split, slow := 0, 0
	for round := range 10 {
		synctest.Test(t, func(t *testing.T) {
			s := newSickbayWith(t, 5, Timeouts{Heartbeat: 10 * time.Second, PromoteAfter: time.Millisecond})
			if err := s.write(0); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Second)
			dead := s.leader(-1)
			term := s.nodes[dead].leadership.term()
			rivals := rand.Perm(4)[:2]
			s.hosts[dead].Close()
			began := time.Now()
			for _, i := range rivals {
				if err := s.nodes[(dead+1+i)%5].stand(); err != nil {
					t.Fatal(err)
				}
			}
			next := s.leader(dead)
			now, took := s.nodes[next].leadership.term(), time.Since(began)
			for _, n := range s.nodes {
				for _, c := range n.chronicle.newest() {
					if c.Leader != "" && c.Term > term && c.Term < now {
						return // one of the two won, and the other one deposed it
					}
				}
			}
			if took > 3*time.Second { // Raft would wait for ten to twenty
				slow++
				t.Logf("round %d: %v until somebody led in term %d, after term %d", round, took, now, term)
			}
			if now > term+1 {
				split++
			}
		})
	}
	t.Logf("%d of 10 votes were split", split)
	if slow > 2 {
		t.Errorf("%d of 10 times the others waited for Raft's time-outs", slow)
	}
}

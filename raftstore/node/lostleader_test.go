package node

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// TestSplitVotesAreNotWaitedFor has several of four survivors stand for election at once, whom the others vote for, or
// one of whom deposes another that has just won. What follows is no wait for Raft's time-outs, and no row of elections.
func TestSplitVotesAreNotWaitedFor(t *testing.T) {
	again := 0
	for round := range 12 {
		synctest.Test(t, func(t *testing.T) {
			s := newSickbayWith(t, 5, Timeouts{Heartbeat: 10 * time.Second, Silence: 500 * time.Millisecond, PromoteAfter: time.Millisecond})
			if err := s.write(0); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Second)
			dead := s.leader(-1)
			term := s.nodes[dead].leadership.term()
			rivals := rand.Perm(4)[:2+round%3]
			s.net.Delay(func(string, string, int) time.Duration { return rand.N(10 * time.Millisecond) })
			s.hosts[dead].Close()
			began := time.Now()
			for _, i := range rivals {
				if err := s.nodes[(dead+1+i)%5].stand(); err != nil {
					t.Fatal(err)
				}
			}
			next := s.leader(dead)
			now, took := s.nodes[next].leadership.term(), time.Since(began)
			if took > 2*time.Second { // Raft would wait for ten to twenty
				t.Errorf("round %d: %v until somebody led in term %d, after term %d", round, took, now, term)
			}
			if took > 500*time.Millisecond {
				again++
			}
		})
	}
	t.Logf("%d of 12 elections were in vain", again)
}

// TestVotesThatTakeLongAreWaitedFor has disks that take longer for a vote, which is three writes, than Timeouts.Silence:
// nobody must stand while somebody writes his vote for another one.
func TestVotesThatTakeLongAreWaitedFor(t *testing.T) {
	for range 3 {
		synctest.Test(t, func(t *testing.T) {
			s := newSickbayWith(t, 5, Timeouts{Heartbeat: time.Minute, Silence: 500 * time.Millisecond, Call: 5 * time.Second, PromoteAfter: time.Millisecond})
			if err := s.write(0); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Second)
			dead := s.leader(-1)
			for i, d := range s.disks {
				if i != dead {
					d.slowDown(500 * time.Millisecond)
				}
			}
			s.hosts[dead].Close()
			began := time.Now()
			s.leader(dead)
			if took := time.Since(began); took > 6*time.Second { // seven writes, one after the other
				t.Errorf("it took %v", took)
			}
		})
	}
}

// TestWhoHasOnlyASnapshotRanksByIt: a log that was cut as far as the snapshot goes does not make its server the last one to
// stand for election.
func TestWhoHasOnlyASnapshotRanksByIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 1)
		n := s.nodes[0]
		for range 3 {
			if err := s.write(0); err != nil {
				t.Fatal(err)
			}
		}
		want := n.candidacy()
		n.setTrailingLogs(0)
		if err := n.Snapshot(); err != nil {
			t.Fatal(err)
		}
		if first, err := n.storage.log.FirstIndex(); err != nil || first != 0 {
			t.Fatalf("the log still begins at %d, %v", first, err)
		}
		if got := n.candidacy(); got != want || got.Term == 0 {
			t.Errorf("it says of itself %+v, and said before %+v", got, want)
		}
	})
}

package node

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
)

// TestSplitVotesAreNotWaitedFor has up to three of four survivors campaign at about the same time,
// the one whose turn it is and others. Votes are split, or one deposes another that has just won.
// Neither a wait for Raft's time-outs nor a row of elections follows.
func TestSplitVotesAreNotWaitedFor(t *testing.T) {
	again := 0
	for round := range 12 {
		synctest.Test(t, func(t *testing.T) {
			s := newSickbayWith(t, 5,
				group.Timeouts{Heartbeat: 10 * time.Second, Silence: 500 * time.Millisecond,
					PromoteAfter: time.Millisecond})
			if err := s.write(0); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Second)
			dead := s.leader(-1)
			term := s.nodes[dead].leader.Term()
			rivals := rand.Perm(4)[:1+round%2] // not all survivors: see absent.go for that
			s.net.Delay(func(string, string, int) time.Duration { return rand.N(10 * time.Millisecond) })
			s.hosts[dead].Close()
			began := time.Now()
			for _, i := range rivals {
				<-time.After(rand.N(20 * time.Millisecond))
				insist(t, s.nodes[(dead+1+i)%5])
			}
			next := s.leader(dead)
			now, took := s.nodes[next].leader.Term(), time.Since(began)
			if took > 2*time.Second { // Raft would wait for ten to twenty
				t.Errorf("round %d: %v until somebody led in term %d, after term %d", round, took, now, term)
			}
			if took > 500*time.Millisecond {
				again++
			}
		})
	}
	t.Logf("%d of 12 elections brought no leader", again)
}

// insist makes a server campaign, whatever has happened.
func insist(t *testing.T, n *Node) {
	t.Helper()
	if err := n.election.Campaign(t.Context(), func() error { return nil }); err != nil {
		t.Fatal(err)
	}
}

// TestACandidateFollowsNobody: while this server campaigns on request, a leader's message comes.
// Raft names that leader for ever when it dies and no other is elected. This server must know all
// the same that there is none, and since when.
func TestACandidateFollowsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 5)
		if err := s.write(0); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		dead := s.leader(-1)
		n, winner := s.nodes[(dead+1)%5], s.nodes[(dead+2)%5]
		for _, i := range []int{0, 3, 4} { // two of five elect no leader
			s.hosts[(dead+i)%5].Close()
		}
		term := n.raft.CurrentTerm()
		insist(t, n)
		s.await("it campaigns", func() bool { return n.raft.State() == raft.Candidate && n.raft.CurrentTerm() > term })
		word := &raft.AppendEntriesRequest{RPCHeader: winner.raft.header(), Term: n.raft.CurrentTerm()}
		id, addr := raft.ServerID(n.id.ServerID), raft.ServerAddress(n.cfg.Stream.Addr())
		if err := winner.raft.network.AppendEntries(id, addr, word, &raft.AppendEntriesResponse{}); err != nil {
			t.Fatal(err)
		}
		s.hosts[(dead+2)%5].Close()
		const long = 2 * time.Minute
		<-time.After(long)
		if _, named := n.raft.LeaderWithID(); string(named) != winner.id.ServerID || n.raft.State() != raft.Candidate {
			t.Fatalf("Raft says %v, led by %q: its case has gone, and raftfix.Leader is not needed", n.raft.State(),
				named)
		}
		if _, leader := n.raft.leader(); leader != "" {
			t.Errorf("it follows %q", leader)
		}
		if since := n.condition().Leaderless(); since < long {
			t.Errorf("it has had no leader for %s, it says; want %s", since, long)
		}
	})
}

// TestVotesThatTakeLongAreWaitedFor has disks that take longer for a vote, which is three writes,
// than Timeouts.Silence: no server may campaign while another one persists a vote. Where one disk
// is fast, its server has long voted, and waits for the others.
func TestVotesThatTakeLongAreWaitedFor(t *testing.T) {
	for _, fast := range []int{-1, 1, 2, 3, 4} {
		for range 3 {
			synctest.Test(t, func(t *testing.T) {
				s := newSickbayWith(t, 5,
					group.Timeouts{Heartbeat: time.Minute, Silence: 500 * time.Millisecond, Call: 5 * time.Second,
						PromoteAfter: time.Millisecond})
				if err := s.write(0); err != nil {
					t.Fatal(err)
				}
				<-time.After(time.Second)
				dead := s.leader(-1)
				term := s.nodes[dead].leader.Term()
				for i, d := range s.disks {
					if i != dead && fast != (i-dead+5)%5 {
						d.slowDown(500 * time.Millisecond)
					}
				}
				s.hosts[dead].Close()
				began := time.Now()
				next := s.leader(dead)
				if took := time.Since(began); took > 6*time.Second { // seven writes, one after the other
					t.Errorf("it took %v", took)
				}
				if now := s.nodes[next].leader.Term(); now != term+1 {
					t.Errorf("term %d became term %d, with the fast disk at %d", term, now, fast)
				}
			})
		}
	}
}

// TestWhoHasOnlyASnapshotRanksByIt: a log that was cut as far as the snapshot goes does not make
// its server the last one to campaign.
func TestWhoHasOnlyASnapshotRanksByIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 1)
		n := s.nodes[0]
		for range 3 {
			if err := s.write(0); err != nil {
				t.Fatal(err)
			}
		}
		want := n.election.Candidacy()
		cfg := n.raft.ReloadableConfig()
		cfg.TrailingLogs = 0
		if err := n.raft.ReloadConfig(cfg); err != nil {
			t.Fatal(err)
		}
		if err := n.Snapshot(); err != nil {
			t.Fatal(err)
		}
		if first, err := n.storage.Log.FirstIndex(); err != nil || first != 0 {
			t.Fatalf("the log still begins at %d, %v", first, err)
		}
		if got := n.election.Candidacy(); got != want || got.Term == 0 {
			t.Errorf("it says of itself %+v, and said before %+v", got, want)
		}
	})
}

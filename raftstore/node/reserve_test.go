package node

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore/autopilot"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/leader"
)

// The behaviour of a leader with a full disk: see package leader.
const (
	stuckAfter = leader.StuckAfter
	fullLook   = leader.FullLook
)

// fill makes a server believe that its disk is full, for good.
func (s *sickbay) fill(i int) {
	r := s.nodes[i].storage.Reserve
	r.Path = s.t.TempDir() + "/reserve" // as if it were on disk
	r.Size = 1 << 50                    // for which there is never room again
	r.Release()
}

// TestMembersLeaveAFullLeader: decisions about members go through on a full disk. Taking out the
// server that has it is a way out.
func TestMembersLeaveAFullLeader(t *testing.T) {
	for _, kind := range []autopilot.ChangeKind{autopilot.DemoteMember, autopilot.RemoveMember} {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSickbay(t, 3)
				full := s.leader(-1)
				r := s.nodes[full].storage.Reserve
				r.Full.Store(true) // and the leader does not know yet that it is to hand over
				began := time.Now()
				if err := s.nodes[full].Apply(s.ctx, autopilot.Change{Kind: kind, ID: s.nodes[full].ID()}); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took >= stuckAfter {
					t.Errorf("it took %v: it waited until somebody else led", took)
				}
				if next := s.nodes[s.leader(full)]; next.voters() != 2 {
					t.Errorf("%d vote: %+v", next.voters(), next.Members())
				}
			})
		})
	}
}

// TestAServerThatLeavesIsNoTransferee: a leader with a full disk leads on rather than hand over to
// one that is on its way out, and that only waits for a third one to be well.
func TestAServerThatLeavesIsNoTransferee(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		leader := s.leader(-1)
		leaver, sick := (leader+1)%3, (leader+2)%3
		n, term := s.nodes[leader], s.nodes[leader].leader.Term()
		s.disks[sick].hang()
		id := s.nodes[leaver].ID()
		if err := n.autopilot.Decide(s.ctx, term, id, n.decision(id),
			group.Decision{State: group.Leaving, Name: "leaver"}); err != nil {
			t.Fatal(err)
		}
		s.fill(leader)
		<-time.After(4 * stuckAfter)
		if now := n.leader.Term(); now != term {
			t.Errorf("the leader of term %d leads in term %d", term, now)
		}
		if s.nodes[leaver].leader.Term() != 0 {
			t.Error("the one that is to leave leads")
		}
		s.disks[sick].recover()
	})
}

// TestAFullLeaderHandsOverAtOnce: writes are refused until another server leads.
func TestAFullLeaderHandsOverAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		leader := s.leader(-1)
		s.fill(leader)
		began := time.Now()
		next := s.leader(leader)
		if err := s.write(next); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 500*time.Millisecond {
			t.Errorf("it takes writes again after %v", took)
		}
	})
}

// TestWhoDoesNotAnswerIsWaitedFor: that no server can lead in place of a full leader is
// reported when for a while none that answers has had room, and no later because another one
// does not answer.
func TestWhoDoesNotAnswerIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		leader := s.leader(-1)
		full, silent := (leader+1)%3, (leader+2)%3
		s.fill(full)
		s.net.Mute(s.hosts[silent].Addr())
		s.fill(leader)
		stuck := &s.nodes[leader].storage.Reserve.Stuck
		began := time.Now()
		s.await("it is stuck", stuck.Load)
		// a look may begin just before, and after a pause
		if took := time.Since(began); took < stuckAfter || took > stuckAfter+2*fullLook {
			t.Errorf("it is said after %v that nobody can lead in its place", took)
		}
		s.net.Heal()
		s.leader(leader)
	})
}

// TestAFullLeaderWaitsForNobodyElse: a server that does not answer does not delay the leadership of
// one that has room.
func TestAFullLeaderWaitsForNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		leader := s.leader(-1)
		s.net.Mute(s.hosts[(leader+1)%3].Addr())
		s.fill(leader)
		began := time.Now()
		s.leader(leader)
		if took := time.Since(began); took > 500*time.Millisecond {
			t.Errorf("another server leads after %v", took)
		}
		s.net.Heal()
	})
}

// TestWhoIsSlowToAnswerIsFound: a server that has room again leads, also when the log said before
// that none can, and when its answer takes longer than the looks before that might.
func TestWhoIsSlowToAnswerIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		leader := s.leader(-1)
		full, silent := (leader+1)%3, (leader+2)%3
		s.fill(full)
		s.net.Mute(s.hosts[silent].Addr())
		s.fill(leader)
		s.await("it is stuck", s.nodes[leader].storage.Reserve.Stuck.Load)
		s.net.Delay(func(from, _ string, _ int) time.Duration { // of an answer, and less than a leader may be silent
			if from == s.hosts[silent].Addr() {
				return fullLook + 100*time.Millisecond
			}
			return 0
		})
		s.net.Heal()
		began := time.Now()
		s.await("the one that is slow to answer leads", func() bool { return s.nodes[silent].leader.Term() != 0 })
		// At the third look at the latest, each with a connection to the slow one, its answer, and
		// a hand-over to it.
		if took := time.Since(began); took > 3*(stuckAfter+3*time.Second) {
			t.Errorf("it leads after %v", took)
		}
		s.net.Delay(nil)
	})
}

// TestReserveTakes: a leader whose disk is full takes deletions only.
func TestReserveTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 1)
		n := s.nodes[0]
		n.storage.Reserve.Path = t.TempDir() + "/reserve" // as if it were on disk
		n.storage.Reserve.Size = 1 << 50                  // for which there is never room again
		n.storage.Reserve.Release()
		_, err := n.Propose(s.ctx, s.request())
		if err == nil || !strings.Contains(err.Error(), "disk of this server is full") {
			t.Errorf("a write: %v", err)
		}
		req := s.request()
		req.Txn.Ops[0].Kind = kv.Delete
		if _, err := n.Propose(s.ctx, req); err != nil {
			t.Errorf("a deletion: %v", err)
		}
		if status := n.Status(); !status.DiskFull {
			t.Errorf("it says %+v", status)
		}
	})
}

package node

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/syncbuf"
	"github.com/barque/barque/raftstore/autopilot"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
)

// TestADecisionOfAnEarlierTerm has a server that led make a decision that rests on its view then:
// on a configuration, for one, whose last change was never committed.
func TestADecisionOfAnEarlierTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		before := s.leader(-1)
		old := s.nodes[before]
		term := old.leader.Term()
		if err := old.leader.HandOver(s.ctx, "the test wants it", true); err != nil {
			t.Fatal(err)
		}
		now := s.nodes[s.leader(before)]
		id := s.nodes[3-before-index(s, now)].id.ServerID
		s.await("it knows who leads", func() bool { _, local, err := old.leaderAt(); return err == nil && !local })
		if err := old.autopilot.Decide(s.ctx, term, id, group.Decision{},
			group.Decision{State: group.Removed}); !errors.Is(err, kv.ErrUnavailable) {
			t.Errorf("a decision of an earlier term: %v", err)
		}
		if got := now.decision(id); got.State != group.Regular {
			t.Errorf("server %s is %s by the word of one who does not lead", id, got.State)
		}
		if err := now.autopilot.Decide(s.ctx, now.leader.Term(), id, group.Decision{},
			group.Decision{State: group.Standby}); err != nil {
			t.Errorf("a decision of this term: %v", err)
		}
	})
}

func index(s *sickbay, of *Node) int {
	for i, n := range s.nodes {
		if n == of {
			return i
		}
	}
	return -1
}

// TestFrozenLeaderTakesNobodyForDead stops the clock of the leader's process between two looks.
func TestFrozenLeaderTakesNobodyForDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbayWith(t, 3, group.Timeouts{Heartbeat: 10 * time.Second, PromoteAfter: time.Millisecond})
		leader := s.leader(-1)
		o := autopilot.NewObserver(s.nodes[leader].autopilot, 0)
		mute := s.nodes[(leader+1)%3]
		o.Observe(s.ctx)
		if err := mute.Close(); err != nil {
			t.Fatal(err)
		}
		silent := func() time.Duration {
			for _, server := range o.Observe(s.ctx) {
				if server.ID == mute.id.ServerID && !server.Answers {
					return server.Silent
				}
			}
			t.Fatal("it answers")
			return 0
		}
		<-time.After(10 * time.Minute) // in which no server was asked
		if got := silent(); got > time.Minute {
			t.Errorf("it was asked for the first time, and is said to have been silent for %v", got)
		}
		for range 100 {
			<-time.After(autopilot.IdleEvery)
			silent()
		}
		if got := silent(); got < 100*autopilot.IdleEvery {
			t.Errorf("it has not answered for %v, and is said to have been silent for %v", 100*autopilot.IdleEvery, got)
		}
	})
}

// blockedDeparture has five servers of which one is to leave, which cannot be done because two
// others died: the first of them is dead since long.
func blockedDeparture(
	t *testing.T, cleanAfter time.Duration,
) (s *sickbay, leader, leaves, dead *Node, log *syncbuf.Buffer) {
	log = new(syncbuf.Buffer)
	s = newSickbayOf(t, 5, func(cfg *Config) {
		cfg.Timeouts, cfg.CleanAfter = group.Timeouts{Heartbeat: 10 * time.Second, PromoteAfter: time.Millisecond},
			cleanAfter
		cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	})
	at := s.leader(-1)
	leader, leaves, dead = s.nodes[at], s.nodes[(at+1)%5], s.nodes[(at+2)%5]
	s.hosts[(at+2)%5].Close()
	<-time.After(9 * time.Minute)
	s.hosts[(at+3)%5].Close()
	if err := leader.autopilot.Decide(s.ctx, leader.leader.Term(), leaves.ID(), group.Decision{},
		group.Decision{State: group.Leaving, Name: leaves.cfg.Name}); err != nil {
		t.Fatal(err)
	}
	return s, leader, leaves, dead, log
}

// TestADepartureThatIsBlockedHoldsUpNobody: a server that is dead for long is taken out, and
// without it the departure has its quorum.
func TestADepartureThatIsBlockedHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, leader, leaves, dead, _ := blockedDeparture(t, 10*time.Minute)
		for end := time.Now().Add(5 * time.Minute); time.Now().Before(end) &&
			leader.decision(leaves.ID()).State != group.Removed; {
			<-time.After(time.Second)
		}
		for _, n := range []*Node{dead, leaves} {
			if got := leader.decision(n.ID()).State; got != group.Removed {
				t.Errorf("%s is %q, want %q", n.cfg.Name, got, group.Removed)
			}
		}
		if got := leader.voters(); got != 3 {
			t.Errorf("%d vote, want 3", got)
		}
		if err := s.write(index(s, leader)); err != nil {
			t.Error(err)
		}
	})
}

// TestADepartureThatIsBlockedIsLookedAtInPeace: not as often as one that goes on, and the log says
// once what the departure lacks.
func TestADepartureThatIsBlockedIsLookedAtInPeace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, leader, leaves, _, log := blockedDeparture(t, 0)
		<-time.After(time.Minute)
		seen := func() *group.Health {
			health := leader.autopilot.Health()
			if len(health) == 0 {
				t.Fatal("the leader tells nothing of the members: it leads no more")
			}
			return &health[0]
		}
		looks, last := 0, seen()
		for range 6000 {
			<-time.After(10 * time.Millisecond)
			if now := seen(); now != last {
				looks, last = looks+1, now
			}
		}
		if looks < 10 || looks > 61 {
			t.Errorf("%d looks in a minute", looks)
		}
		const want = "a server is to leave, or to lose its vote, and cannot yet; to keep it after all, promote it"
		if text := log.String(); strings.Count(text, want) != 1 ||
			!strings.Contains(text, "bring servers back, remove one that is lost for good, or let new ones join") {
			t.Errorf("it says %d times why it is blocked, want once:\n%s", strings.Count(text, want), text)
		}
		if got := leader.decision(leaves.ID()).State; got != group.Leaving {
			t.Errorf("it is %q", got)
		}
	})
}

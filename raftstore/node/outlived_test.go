package node

import (
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore/kv"
)

// Nobody is outlived but for certain: when a majority of the voters had no leader at the time of the recovery.
func TestJudgeFindings(t *testing.T) {
	for name, c := range map[string]struct {
		f    findings
		want judgement
	}{
		"disowned":                                   {findings{disowned: true, out: 3, voters: 3}, isWell},
		"one was in touch":                           {findings{well: true, out: 2, voters: 3}, isWell},
		"a leader that was":                          {findings{well: true, leads: true, voters: 3}, isWell},
		"a majority was not":                         {findings{out: 2, voters: 3}, isOutlived},
		"a leader whose majority was not":            {findings{out: 2, voters: 3, leads: true, led: true}, isOutlived},
		"half of them were not":                      {findings{out: 2, voters: 4}, inDoubt},
		"nobody answers":                             {findings{voters: 3}, inDoubt},
		"no voter is known":                          {findings{}, inDoubt},
		"it follows":                                 {findings{out: 2, voters: 3, led: true}, forOthers},
		"nobody knows, and it follows":               {findings{voters: 3, led: true}, forOthers},
		"a leader in doubt":                          {findings{out: 1, voters: 3, leads: true}, inDoubt},
		"a leader, at the moment of it, or before":   {findings{out: 1, voters: 3, leads: true, goesOn: true}, notYet},
		"the same, but does not lead and is not led": {findings{out: 1, voters: 3, goesOn: true}, inDoubt},
		"the only voter":                             {findings{out: 1, voters: 1, leads: true}, isOutlived},
	} {
		if got := c.f.judge(); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// A server that turns out to be outlived does not take part again on the way.
func TestOutlivedIsHeldBackToTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newSickbay(t, 1).nodes[0]
		<-time.After(time.Minute)
		c := claimOf(1, time.Now(), 30*time.Second)
		p := n.presence
		p.mu.Lock()
		p.spans[0].Until, p.spans[0].Over, p.open = p.spans[0].Since.Add(10*time.Second), true, false
		p.mu.Unlock()
		n.holdBack(c)
		one := &trial{out: outlivedTimes, outSince: time.Now().Add(-outlivedAfter), holds: true}
		one.hear(c)
		d := &docket{[]*trial{one}}
		if v := n.judge(d, one); v != isOutlived || n.heirs.held.Load() == nil {
			t.Errorf("judged %d, held back for %v", v, n.heirs.held.Load())
		}
	})
}

// Who holds back takes no write, also when Raft has it for the leader all the time, as the only voter; and leads again when it does not hold back any more.
func TestOnlyVoterHoldsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 1)
		n := s.nodes[0]
		n.holdBack(claimOf(1, time.Now(), 0))
		if _, err := n.Propose(s.ctx, s.request()); !errors.Is(err, kv.ErrUnavailable) {
			t.Errorf("it takes a write: %v", err)
		}
		s.await("it does not lead", func() bool { return n.leadership.term() == 0 })
		<-time.After(10 * time.Second)
		if n.leadership.term() != 0 {
			t.Error("it leads")
		}
		n.release()
		s.await("it leads again", func() bool { return n.leadership.term() != 0 })
		if err := s.write(0); err != nil {
			t.Error(err)
		}
	})
}

// A recovery that was a mistake is known by what was recovered and when, so it stays one when the other cluster is recovered itself, and has another name.
func TestDisownedStaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newSickbay(t, 1).nodes[0]
		c := claimOf(1, time.Now(), 0)
		if err := n.disown(c.Succession); err != nil {
			t.Fatal(err)
		}
		later := c.Succession
		if later.Heir = "recovered once more"; !n.disowned(later) {
			t.Error("the rival is taken for an heir under its new name")
		}
		if later.At = later.At.Add(time.Second); n.disowned(later) {
			t.Error("another recovery is taken for the one that was a mistake")
		}
	})
}

// What others say when they ask is kept of members only, and for a while.
func TestSayings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 2)
		n, peer := s.nodes[0], s.nodes[1].id.ServerID
		c := claimOf(1, time.Now(), 0)
		for _, id := range []string{"nobody", peer, "", "nobody else"} {
			payload, err := json.Marshal(hello{ID: id, Claim: &Succession{Cluster: "test", Heir: c.Heir, By: c.By, At: c.At}, Ago: &ago{}, Word: wasNot})
			if err != nil {
				t.Fatal(err)
			}
			n.handleHello(payload)
		}
		if words := n.heirs.sayings(c.Succession, time.Now()); len(words) != 1 || words[peer] != wasNot || len(n.heirs.heard) != 1 {
			t.Errorf("kept: %v", n.heirs.heard)
		}
		n.heirs.hear("another", c.Succession, wasNot, time.Now().Add(sayingHolds))
		if len(n.heirs.heard) != 1 {
			t.Errorf("kept for too long: %v", n.heirs.heard)
		}
	})
}

// What a leader says of why it hands over is forgotten in time, by nobody who is left behind when the server stops.
func TestNothingIsLeftOfAHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 2)
		leader := s.leader(-1)
		n := s.nodes[1-leader]
		word := handingOver{s.nodes[leader].id.ServerID, n.raft.CurrentTerm(), "because"}
		payload, err := json.Marshal(word)
		if err != nil {
			t.Fatal(err)
		}
		s.await("it follows", func() bool { _, id := n.raft.LeaderWithID(); return string(id) == word.ID })
		if kind, why := n.handleHandOver(payload); kind != answerOK {
			t.Fatalf("%s", why)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		n.chronicle.Began(time.Now(), word.Term+1, "new", func(string) string { return "nobody said it" })
		if got := n.chronicle.Newest()[0].Why; got != "because" {
			t.Errorf("after it was closed, what was said is taken back: %q", got)
		}
	})
}

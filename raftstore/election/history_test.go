package election

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore/status"
)

// TestLeaderHistory: the history has each leader together with the reason why the one before ended.
func TestLeaderHistory(t *testing.T) {
	var c leaderHistory
	expect := func(leader, before, why string, term uint64) {
		t.Helper()
		want := status.LeaderChange{Term: term, Leader: leader, Before: before, Why: why}
		got := c.newest()[0]
		if got.At = (time.Time{}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	c.leads(1, "s1", "")
	expect("s1", "", "", 1)
	c.lost(1, "s1", "nothing was heard of s1 for 2s")
	expect("", "s1", "nothing was heard of s1 for 2s", 1)
	c.leads(2, "s2", "")
	expect("s2", "s1", "nothing was heard of s1 for 2s", 2)
	// The reason for which a server campaigns is better than one from its clock.
	c.campaigns(3, "s2 is gone", false)
	c.lost(2, "s2", "s2 handed over")
	expect("", "s2", "s2 is gone", 2)
	c.leads(3, "s3", "")
	expect("s3", "s2", "s2 is gone", 3)
	// One leader after the other, without a time between: the reason is unknown.
	c.leads(4, "s1", "")
	expect("s1", "s3", "", 4)
	c.leads(5, "s2", "s1 was slow")
	expect("s2", "s1", "s1 was slow", 5)
	// An election without a winner, and events of long ago, are not the reason of the next one.
	c.campaigns(6, "s2 is gone", false)
	c.lost(7, "s2", "s2 handed over")
	expect("", "s2", "s2 handed over", 7)
	c.leads(8, "s1", "")
	expect("s1", "s2", "s2 handed over", 8)
	// An election, and another one, bring no leader: the reason why the last one went stays.
	c.campaigns(9, "s1 is gone", false)
	c.lost(9, "s1", "s1 handed over")
	expect("", "s1", "s1 is gone", 9)
	for term := uint64(10); term < 12; term++ {
		c.campaigns(term, "an election brought no leader", true)
	}
	c.leads(11, "s3", "")
	expect("s3", "s1", "s1 is gone; then an election brought no leader", 11)
	// Where no server has led before, the reason has all the attempts.
	var opened leaderHistory
	opened.leads(2, "s1", "nobody led at the start")
	if got := opened.newest()[0].Why; got != "nobody led at the start" {
		t.Errorf("after a start: %q", got)
	}
	opened = leaderHistory{}
	opened.campaigns(2, "an election brought no leader", true)
	opened.leads(2, "s1", "nobody led at the start")
	if got := opened.newest()[0].Why; got != "nobody led at the start; then an election brought no leader" {
		t.Errorf("after a start and an election without a leader: %q", got)
	}
	// Where nothing is known of the leader before, that is all there is to say.
	var fresh leaderHistory
	fresh.campaigns(2, "an election brought no leader", true)
	fresh.leads(2, "s1", "")
	if got := fresh.newest()[0].Why; got != "an election brought no leader" {
		t.Errorf("after a start: %q", got)
	}
	// A reason is for one term, and one that is taken back is none.
	fresh.campaigns(3, "s1 is gone", false)
	if got, other := fresh.whyCampaigns(3), fresh.whyCampaigns(4); got != "s1 is gone" || other != "" {
		t.Errorf("for term 3 %q is noted, and %q for term 4", got, other)
	}
	fresh.campaigns(2, "", false)
	fresh.lost(2, "s1", "silent")
	if got := fresh.newest()[0].Why; got != "silent" {
		t.Errorf("after it was taken back: %q", got)
	}
}

// TestLeaderHistoryForgets: old changes are dropped.
func TestLeaderHistoryForgets(t *testing.T) {
	var c leaderHistory
	for i := range 3 * leaderChangesKept {
		c.leads(uint64(i), fmt.Sprint("s", i), "")
	}
	all := c.newest()
	if len(all) != leaderChangesKept || all[0].Term != 3*leaderChangesKept-1 ||
		all[len(all)-1].Term != 2*leaderChangesKept {
		t.Errorf("%d changes, from term %d to %d", len(all), all[len(all)-1].Term, all[0].Term)
	}
}

// TestWriteGaps: the gap of a change is from the last sign of the former leader, whatever was heard
// in between, to the next leader. A first leader has none, nor has one whose predecessor's end is
// unknown.
func TestWriteGaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h leaderHistory
		expect := func(want time.Duration) {
			t.Helper()
			if got := h.newest()[0].Gap; got != want {
				t.Errorf("the gap is %s, want %s", got, want)
			}
		}
		h.lastSign(time.Now())
		h.leads(1, "s1", "")
		expect(0)
		time.Sleep(time.Hour)
		h.lastSign(time.Now())
		time.Sleep(time.Second)
		h.lost(1, "s1", "silent")
		expect(0)
		h.lastSign(time.Now()) // a vote
		time.Sleep(500 * time.Millisecond)
		h.leads(3, "s2", "")
		expect(1500 * time.Millisecond)
		time.Sleep(time.Hour)
		h.leads(4, "s3", "")
		expect(0)
	})
}

package node

import (
	"fmt"
	"testing"
	"time"
)

// TestChronicle: who leads is told together with why the one before does not any more.
func TestChronicle(t *testing.T) {
	var c chronicle
	at := time.Unix(1000, 0)
	expect := func(leader, before, why string, term uint64) {
		t.Helper()
		want := LeaderChange{At: at, Term: term, Leader: leader, Before: before, Why: why}
		if got := c.newest()[0]; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		at = at.Add(time.Second)
	}
	c.began(at, 1, "s1", nil)
	expect("s1", "", "", 1)
	c.ended(at, 1, "s1", "nothing was heard of s1 for 2s")
	expect("", "s1", "nothing was heard of s1 for 2s", 1)
	c.began(at, 2, "s2", nil)
	expect("s2", "s1", "nothing was heard of s1 for 2s", 2)
	// A server that knows why it stands for election knows better than its clock.
	c.blame(3, "s2 is gone")
	c.ended(at, 2, "s2", "s2 handed over")
	expect("", "s2", "s2 is gone", 2)
	c.began(at, 3, "s3", nil)
	expect("s3", "s2", "s2 is gone", 3)
	// One leader after the other, without a time between: nobody knows why.
	c.began(at, 4, "s1", nil)
	expect("s1", "s3", "", 4)
	c.began(at, 5, "s2", func(before string) string { return before + " was slow" })
	expect("s2", "s1", "s1 was slow", 5)
	// Nothing came of an election, and what is long ago is not why the next one was.
	c.blame(6, "s2 is gone")
	c.ended(at, 7, "s2", "s2 handed over")
	expect("", "s2", "s2 handed over", 7)
	c.began(at, 8, "s1", nil)
	expect("s1", "s2", "s2 handed over", 8)
}

// TestChronicleForgets: what is long ago goes.
func TestChronicleForgets(t *testing.T) {
	var c chronicle
	for i := range 3 * chronicleLength {
		c.began(time.Unix(int64(i), 0), uint64(i), fmt.Sprint("s", i), nil)
	}
	all := c.newest()
	if len(all) != chronicleLength || all[0].Term != 3*chronicleLength-1 || all[len(all)-1].Term != 2*chronicleLength {
		t.Errorf("%d changes, from term %d to %d", len(all), all[len(all)-1].Term, all[0].Term)
	}
}

// TestForeignersAreToldRarely: what stays as it is for days is said once, and then now and then.
func TestForeignersAreToldRarely(t *testing.T) {
	var f foreigners
	now := time.Unix(0, 0)
	for _, c := range []struct {
		after   time.Duration
		addr    string
		cluster string
		want    bool
	}{
		{0, "a", "x", true}, {2 * time.Second, "a", "x", false}, {0, "b", "x", true}, {time.Minute, "a", "x", false},
		{0, "a", "y", true}, {foreignAgain, "a", "y", true}, {time.Second, "a", "y", false},
	} {
		now = now.Add(c.after)
		if got := f.note(c.addr, c.cluster, now); got != c.want {
			t.Errorf("at %v: %s of %s is told: %v", now.UTC(), c.addr, c.cluster, got)
		}
	}
	if all := f.clusters(); len(all) != 2 || all["a"] != "y" || all["b"] != "x" {
		t.Errorf("met %v", all)
	}
	f.forget()
	if !f.note("a", "y", now) {
		t.Error("what was forgotten is not told")
	}
}

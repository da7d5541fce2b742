package chronicle

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestChronicle: who leads is told together with why the one before does not any more.
func TestChronicle(t *testing.T) {
	var c Chronicle
	at := time.Unix(1000, 0)
	expect := func(leader, before, why string, term uint64) {
		t.Helper()
		want := Change{At: at, Term: term, Leader: leader, Before: before, Why: why}
		if got := c.Newest()[0]; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		at = at.Add(time.Second)
	}
	c.Began(at, 1, "s1", nil)
	expect("s1", "", "", 1)
	c.Ended(at, 1, "s1", "nothing was heard of s1 for 2s")
	expect("", "s1", "nothing was heard of s1 for 2s", 1)
	c.Began(at, 2, "s2", nil)
	expect("s2", "s1", "nothing was heard of s1 for 2s", 2)
	// A server that knows why it stands for election knows better than its clock.
	c.Blame(3, "s2 is gone", false)
	c.Ended(at, 2, "s2", "s2 handed over")
	expect("", "s2", "s2 is gone", 2)
	c.Began(at, 3, "s3", nil)
	expect("s3", "s2", "s2 is gone", 3)
	// One leader after the other, without a time between: nobody knows why.
	c.Began(at, 4, "s1", nil)
	expect("s1", "s3", "", 4)
	c.Began(at, 5, "s2", func(before string) string { return before + " was slow" })
	expect("s2", "s1", "s1 was slow", 5)
	// Nothing came of an election, and what is long ago is not why the next one was.
	c.Blame(6, "s2 is gone", false)
	c.Ended(at, 7, "s2", "s2 handed over")
	expect("", "s2", "s2 handed over", 7)
	c.Began(at, 8, "s1", nil)
	expect("s1", "s2", "s2 handed over", 8)
	// An election, and another one, bring nobody: why the leader went is told all the same.
	c.Blame(9, "s1 is gone", false)
	c.Ended(at, 9, "s1", "s1 handed over")
	expect("", "s1", "s1 is gone", 9)
	for term := uint64(10); term < 12; term++ {
		c.Blame(term, "an election brought no leader", true)
	}
	c.Began(at, 11, "s3", nil)
	expect("s3", "s1", "s1 is gone; then an election brought no leader", 11)
	// Where nobody has led before, why this one does is told with all that came of it.
	var opened Chronicle
	guess := func(before string) string { return "nobody led at the start" + before }
	opened.Began(at, 2, "s1", guess)
	if got := opened.Newest()[0].Why; got != "nobody led at the start" {
		t.Errorf("after a start: %q", got)
	}
	opened = Chronicle{}
	opened.Blame(2, "an election brought no leader", true)
	opened.Began(at, 2, "s1", guess)
	if got := opened.Newest()[0].Why; got != "nobody led at the start; then an election brought no leader" {
		t.Errorf("after a start and an election in vain: %q", got)
	}
	// Where nothing is known of the leader before, that is all there is to say.
	var fresh Chronicle
	fresh.Blame(2, "an election brought no leader", true)
	fresh.Began(at, 2, "s1", nil)
	if got := fresh.Newest()[0].Why; got != "an election brought no leader" {
		t.Errorf("after a start: %q", got)
	}
}

// TestChronicleForgets: what is long ago goes.
func TestChronicleForgets(t *testing.T) {
	var c Chronicle
	for i := range 3 * length {
		c.Began(time.Unix(int64(i), 0), uint64(i), fmt.Sprint("s", i), nil)
	}
	all := c.Newest()
	if len(all) != length || all[0].Term != 3*length-1 || all[len(all)-1].Term != 2*length {
		t.Errorf("%d changes, from term %d to %d", len(all), all[len(all)-1].Term, all[0].Term)
	}
}

// What is taken back is the reason of no later change; what was noted after it stays.
func TestUnblame(t *testing.T) {
	for name, c := range map[string]struct {
		blame func(*Chronicle)
		want  string
	}{
		"taken back":            {func(c *Chronicle) { c.Unblame(3, "a handed over") }, "silent"},
		"of another term":       {func(c *Chronicle) { c.Unblame(2, "a handed over") }, "a handed over"},
		"another one was since": {func(c *Chronicle) { c.Blame(3, "a is gone", false); c.Unblame(3, "a handed over") }, "a is gone"},
	} {
		var chronicle Chronicle
		chronicle.Blame(3, "a handed over", false)
		c.blame(&chronicle)
		if got, want := chronicle.Blamed(3), strings.TrimPrefix(c.want, "silent"); got != want || chronicle.Blamed(4) != "" {
			t.Errorf("%s: %q is noted for term 3, want %q, and %q for term 4", name, got, want, chronicle.Blamed(4))
		}
		chronicle.Ended(time.Now(), 3, "a", "silent")
		if got := chronicle.Newest()[0].Why; got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

package node

import (
	"fmt"
	"testing"
	"time"
)

func claimOf(i int, heard time.Time, least time.Duration) claim {
	s := Succession{Cluster: "test", Heir: fmt.Sprintf("heir%d", i), By: fmt.Sprintf("s%d-x", i), At: time.Unix(1e9, 0)}
	return claim{Succession: s, from: "there:1", heard: heard, ago: ago{least, least}}
}

// A server is outlived only when that was found several times in a row, over a while. Until then it holds back, and it does so until the end.
func TestWeighIsPatient(t *testing.T) {
	start := time.Now()
	at := func(second int) time.Time { return start.Add(time.Duration(second) * time.Second) }
	t.Run("steadily", func(t *testing.T) {
		var one trial
		for second := 0; second < 10; second += 2 {
			if v := one.weigh(isOutlived, false, at(second)); v != inDoubt || !one.holds || !one.open {
				t.Fatalf("after %d s: %d, %+v", second, v, one)
			}
		}
		if v := one.weigh(isOutlived, false, at(10)); v != isOutlived || !one.holds {
			t.Errorf("after 10 s: %d, %+v", v, one)
		}
	})
	t.Run("seldom", func(t *testing.T) {
		var one trial
		one.weigh(isOutlived, false, at(0))
		if v := one.weigh(isOutlived, false, at(60)); v != inDoubt {
			t.Errorf("found twice: %d", v)
		}
	})
	t.Run("one answer in between", func(t *testing.T) {
		for _, other := range []judgement{isWell, forOthers, notYet, inDoubt} {
			var one trial
			for second := 0; second < 100; second += 2 {
				found := isOutlived
				if second%8 == 0 {
					found = other
				}
				if v := one.weigh(found, false, at(second)); v == isOutlived {
					t.Fatalf("after %d s, with %d in between", second, other)
				}
			}
		}
	})
	t.Run("a leader", func(t *testing.T) {
		var one trial
		for i, found := range []judgement{inDoubt, inDoubt, inDoubt} {
			if one.weigh(found, true, at(i)); one.holds != (i == 2) {
				t.Errorf("question %d: holds back: %t", i, one.holds)
			}
		}
	})
	t.Run("a leader of a cluster that was lost", func(t *testing.T) {
		var one trial
		if v := one.weigh(isOutlived, true, at(0)); v != inDoubt || !one.holds {
			t.Errorf("%d, holds back: %t", v, one.holds)
		}
		if one.weigh(isWell, true, at(2)); one.holds {
			t.Error("it holds back, though one knew better")
		}
	})
}

// What is found of one claim does nothing to what was found of another one.
func TestClaimsAreApart(t *testing.T) {
	var d docket
	now := time.Now()
	d.hear(claimOf(1, now, 0))
	d.hear(claimOf(2, now, 0))
	rival, heir := d.trials[0], d.trials[1]
	heir.weigh(inDoubt, false, now)
	rival.weigh(isWell, false, now)
	if d.holder() != heir || !d.open() {
		t.Errorf("after the other one is known to be a rival: %+v", d.holder())
	}
	d.hear(claimOf(1, now, 0))
	again := claimOf(2, now, 0)
	again.Heir = "recovered once more"
	d.hear(again)
	if len(d.trials) != 2 || d.trials[1] != heir || heir.Heir != again.Heir || d.holder() != heir {
		t.Errorf("heard again: %+v", d.trials)
	}
	heir.weigh(forOthers, false, now)
	if d.holder() != nil || d.open() {
		t.Errorf("in the end: %+v", d.holder())
	}
	for i := range 100 {
		d.hear(claimOf(i, now, 0))
	}
	if len(d.trials) != trialsKept || d.trials[trialsKept-1].Heir != "heir99" {
		t.Errorf("%d are kept", len(d.trials))
	}
}

// When it was counts back from when it was heard. When that was heard to be at different times, it was at any between them, for as long as that counts.
func TestWhenAClaimWas(t *testing.T) {
	var one trial
	start := time.Now()
	at := func(second int) time.Time { return start.Add(time.Duration(second) * time.Second) }
	s := time.Second
	one.hear(claimOf(1, at(0), 100*s))
	if got := one.when(at(10)); got != (ago{110 * s, 110 * s}) {
		t.Errorf("after 10 s: %v", got)
	}
	one.hear(claimOf(1, at(20), 60*s)) // the clock there was set back by a minute
	if got := one.when(at(20)); got != (ago{60 * s, 120 * s}) {
		t.Errorf("when its clock was set: %v", got)
	}
	for second := 22; second <= 90; second += 2 {
		one.hear(claimOf(1, at(second), time.Duration(40+second)*s))
	}
	if got := one.when(at(90)); got != (ago{130 * s, 130 * s}) {
		t.Errorf("when that is long ago: %v", got)
	}
}

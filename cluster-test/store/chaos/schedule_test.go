package main

import (
	"regexp"
	"testing"
	"time"
)

// TestSchedule: a seed gives one order, each round has every fault once, and other seeds give other orders.
func TestSchedule(t *testing.T) {
	faults := allFaults()
	order := func(seed uint64) (names []string) {
		r := &run{cfg: config{seed: seed, faults: faults}}
		for i := range 3 * len(faults) {
			names = append(names, r.schedule(i).name)
		}
		return names
	}
	first, again, other := order(1), order(1), order(2)
	same := 0
	for i := range first {
		if first[i] != again[i] {
			t.Fatalf("fault %d of a seed is %q, and then %q", i, first[i], again[i])
		}
		if first[i] == other[i] {
			same++
		}
	}
	if same > len(first)/2 {
		t.Errorf("two seeds have %d of %d faults in common", same, len(first))
	}
	for round := range 3 {
		seen := make(map[string]bool)
		for _, name := range first[round*len(faults) : (round+1)*len(faults)] {
			seen[name] = true
		}
		if len(seen) != len(faults) {
			t.Errorf("round %d has %d of %d faults", round, len(seen), len(faults))
		}
	}
	if found, left := possible(short); len(found)+left != 11 {
		t.Errorf("the short run has %d faults, and should have 11", len(found)+left)
	}
	if found, _ := possible(regexp.MustCompile("no such fault")); len(found) != 0 {
		t.Errorf("found %d faults that there are not", len(found))
	}
}

func TestAcks(t *testing.T) {
	start := time.Now()
	a := &acks{start: start}
	for _, each := range []struct {
		ms       int
		revision uint64
	}{{100, 5}, {150, 4}, {900, 9}, {1000, 10}} {
		at := time.Duration(each.ms) * time.Millisecond
		a.addAt(start.Add(at), at, each.revision)
	}
	for _, c := range []struct{ from, to, want int }{
		{0, 50, 100}, {120, 140, 50}, {160, 200, 750}, {160, 950, 750}, {950, 1000, 100}, {1000, 3000, 2000}, {0, 1000, 750},
	} {
		ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
		if got := a.gap(ms(c.from), ms(c.to)); got != ms(c.want) {
			t.Errorf("gap from %d to %d: %v, want %d ms", c.from, c.to, got, c.want)
		}
	}
	for _, c := range []struct {
		ms   int
		want uint64
	}{{0, 0}, {100, 0}, {101, 5}, {160, 5}, {901, 9}, {5000, 10}} {
		if got := a.before(start.Add(time.Duration(c.ms) * time.Millisecond)); got != c.want {
			t.Errorf("acknowledged before %d ms: %d, want %d", c.ms, got, c.want)
		}
	}
	if a.before(time.Time{}) != 0 {
		t.Error("something was acknowledged before no time")
	}
	if counts := a.counts(500 * time.Millisecond); len(counts) != 3 || counts[0] != 2 || counts[1] != 1 || counts[2] != 1 {
		t.Errorf("counts are %v", counts)
	}
}

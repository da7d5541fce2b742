package main

import (
	"testing"
	"time"
)

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

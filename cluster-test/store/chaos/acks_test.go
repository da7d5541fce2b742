package main

import (
	"testing"
	"time"
)

func TestAcks(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	a := &acks{at: []time.Duration{ms(100), ms(150), ms(900), ms(1000)}}
	for _, c := range []struct{ from, to, want int }{
		{0, 50, 100}, {120, 140, 50}, {160, 200, 750}, {160, 950, 750}, {950, 1000, 100}, {1000, 3000, 2000}, {0, 1000, 750},
	} {
		if got := a.gap(ms(c.from), ms(c.to)); got != ms(c.want) {
			t.Errorf("gap from %d to %d: %v, want %d ms", c.from, c.to, got, c.want)
		}
	}
	if counts := a.counts(500 * time.Millisecond); len(counts) != 3 || counts[0] != 2 || counts[1] != 1 || counts[2] != 1 {
		t.Errorf("counts are %v", counts)
	}
}

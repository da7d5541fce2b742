package raftstore

import (
	"testing"
	"time"
)

// TestAgeByBothClocks: the monotonic clock stands still while a machine is suspended, and the wall clock can be set
// back. A state is as old as the one says that says more.
func TestAgeByBothClocks(t *testing.T) {
	var now moment
	f := freshness{clock: func() moment { return now }}
	if _, ok := f.known(); ok || !f.moment().IsZero() {
		t.Error("it knows a moment before there was one")
	}
	const second = int64(time.Second)
	now = moment{at: time.Unix(1000, 0), mono: 10 * second, wall: 1000 * second}
	f.reached(now)
	for name, c := range map[string]struct {
		mono, wall int64
		want       time.Duration
	}{
		"both go on":              {5, 5, 5 * time.Second},
		"a suspension":            {1, 3600, time.Hour},
		"the wall clock set back": {5, -3600, 5 * time.Second},
	} {
		now = moment{mono: (10 + c.mono) * second, wall: (1000 + c.wall) * second}
		known, ok := f.known()
		if got := f.age(known); !ok || got != c.want {
			t.Errorf("%s: %v old, want %v", name, got, c.want)
		}
	}
	f.reached(moment{mono: 9 * second, wall: 2000 * second}) // an older one, that comes late
	if got := f.moment(); !got.Equal(time.Unix(1000, 0)) {
		t.Errorf("it was up to date at %v", got)
	}
}

// TestAMomentIsMonotonic: how old a picture is, by time.Since, does not change when somebody sets the wall clock.
func TestAMomentIsMonotonic(t *testing.T) {
	start := time.Now()
	f := freshness{clock: clockSince(start)}
	now := f.clock()
	f.reached(now)
	if at := f.moment(); at == at.Round(0) || at.Sub(start) != time.Duration(now.mono) {
		t.Errorf("%v has no monotonic part, or another one than %v after %v", at, time.Duration(now.mono), start)
	}
}

package node

import "testing"

// TestEar: a leader that was silent for long and came back is given more time, until that is forgotten.
func TestEar(t *testing.T) {
	const window = 100
	var e ear
	e.attend("a")
	hush := func(ticks int) {
		for range ticks {
			e.tick(false, window)
		}
	}
	expect := func(what string, limit int, misses bool) {
		t.Helper()
		if got := e.limit(); got != limit {
			t.Errorf("%s: the limit is %d ticks, want %d", what, got, limit)
		}
		if got := e.misses("a"); got != misses {
			t.Errorf("%s: it is missed: %v", what, got)
		}
	}
	expect("at first", silenceTicks, false)
	hush(2)
	e.tick(true, window)
	expect("after what is normal", silenceTicks, false)
	hush(4)
	expect("after some silence", silenceTicks, true)
	if e.misses("b") {
		t.Error("somebody else is missed")
	}
	e.tick(true, window)
	expect("when it is back", 4*allowance, false)
	e.attend("b") // the next leader is on the same machines
	expect("another leader", 4*allowance, false)
	for range window {
		e.tick(true, window)
	}
	expect("a window later", 4*allowance, false)
	for range window {
		e.tick(true, window)
	}
	expect("two windows later", silenceTicks, false)
}

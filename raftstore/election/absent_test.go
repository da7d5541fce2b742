package election

import (
	"slices"
	"testing"
)

// TestAbsence: it is time to ask after a silence without a leader, and again. An election, and a
// vote that is being written, begin it anew.
func TestAbsence(t *testing.T) {
	var a absence
	asks := func(term uint64, ticks int) (at []int) {
		for i := range ticks {
			if a.tick("", term, false) {
				at = append(at, i)
			}
		}
		return at
	}
	expect := func(what string, got []int, want ...int) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: it is time after %v ticks, want %v", what, got, want)
		}
	}
	agrees := func(what string, want bool) {
		t.Helper()
		if a.lasts() != want {
			t.Errorf("%s: it agrees with a server that asks: %v", what, !want)
		}
	}
	a.tick("s1", 3, false)
	expect("the leader is lost", asks(3, 2))
	agrees("a moment later", false)
	expect("some ticks later", asks(3, 6), 2)
	agrees("some ticks later", true)
	expect("an election brought no leader", asks(4, 20), 5, 10, 15)
	a.tick("", 4, true)
	agrees("its vote is being written", false)
	expect("its vote was written", asks(4, 8), 4)
	a.tick("s2", 5, false)
	agrees("a server leads", false)
	expect("a server led", asks(5, 6), 4)
}

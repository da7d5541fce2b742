package election

import "testing"

// TestNoLeaderTimer: turns come after a silence, and again; after an election that brought no
// leader they come when there was none for as long as before.
func TestNoLeaderTimer(t *testing.T) {
	var v noLeaderTimer
	turnsOf := func(term uint64, ticks int) (at []int) {
		for i := range ticks {
			if turn := v.tick(false, term); turn > 0 {
				at = append(at, i)
				if turn != len(at) {
					t.Errorf("turn %d comes as number %d", len(at), turn)
				}
			}
		}
		return at
	}
	expect := func(what string, got []int, want ...int) {
		t.Helper()
		if len(got) != len(want) {
			t.Fatalf("%s: turns after %v ticks, want %v", what, got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("%s: turns after %v ticks, want %v", what, got, want)
			}
		}
	}
	v.tick(true, 3)
	expect("the leader is lost", turnsOf(3, 8), 4)
	if !v.lasts() {
		t.Error("after 8 ticks no leader is missed")
	}
	expect("an election brought no leader", turnsOf(4, 20), 8, 13, 18)
	expect("and another one, long after", turnsOf(5, 26), 20, 25)
	v.tick(true, 6)
	if v.lasts() {
		t.Error("the leader is missed")
	}
	expect("a server led", turnsOf(6, 6), 4)
}

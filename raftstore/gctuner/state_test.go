package gctuner

import "testing"

func TestStateBytes(t *testing.T) {
	for total, want := range map[int64]int64{
		512 << 20: 256 << 20, 4 << 30: 1 << 30, 16 << 30: 4 << 30, 1 << 40: 8 << 30,
	} {
		if got := partOfMemory(total); got != want {
			t.Errorf("of %d: %d, want %d", total, got, want)
		}
	}
	if got := StateBytes(5); got != 5 {
		t.Errorf("what was asked for: %d", got)
	}
	if got := StateBytes(0); got < leastState || got > mostState {
		t.Errorf("of this machine: %d", got)
	}
}

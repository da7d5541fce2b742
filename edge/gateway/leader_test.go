package gateway

import (
	"testing"
	"time"
)

// TestPausesGrow: a status that the API refuses again and again costs few requests, and one success
// ends that.
func TestPausesGrow(t *testing.T) {
	pause, rounds := statusPause, 0
	for total := time.Duration(0); total < time.Hour; rounds++ {
		pause = nextPause(pause, true)
		total += pause
	}
	if rounds > 150 {
		t.Errorf("%d rounds in an hour of failures, want 150 at most", rounds)
	}
	if got := nextPause(pause, false); got != statusPause {
		t.Errorf("after a success: %v, want %v", got, statusPause)
	}
}

package storeerror

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/barque/barque/raftstore"
)

// TestAnAnswerIsMappedOnce: the error of a watch's first read is an answer already when the watch
// ends with it.
func TestAnAnswerIsMappedOnce(t *testing.T) {
	leaderless := &raftstore.LeaderlessError{For: time.Minute, Reason: "no leader has been known for 1m0s"}
	for _, err := range []error{leaderless, raftstore.ErrUnavailable, context.DeadlineExceeded} {
		once := OfRead(err)
		if twice := OfRead(fmt.Errorf("list: %w", once)); twice.Error() != once.Error() {
			t.Errorf("%q has become %q", once, twice)
		}
	}
}

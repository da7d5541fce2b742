package member

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/barque/barque/raftstore"
)

// TestFailures: an error is of the same kinds on both sides.
func TestFailures(t *testing.T) {
	kinds := append([]error{raftstore.ErrUnavailable}, codes...)
	for _, kind := range codes {
		here := fmt.Errorf("around: %w", kind)
		there := FailureOf(here).Err("s0")
		for _, k := range kinds {
			if errors.Is(here, k) != errors.Is(there, k) {
				t.Errorf("%v is %v there: %v, here: %v", there, k, errors.Is(there, k), errors.Is(here, k))
			}
		}
	}
	both := fmt.Errorf("%w (%w)", raftstore.ErrUnavailable, context.DeadlineExceeded)
	if err := FailureOf(both).Err("s0"); !errors.Is(err, raftstore.ErrUnavailable) {
		t.Errorf("%v is not unavailable", err)
	}
	var conflict *raftstore.ConflictError
	if err := FailureOf(&raftstore.ConflictError{Key: "/k", Revision: 7}).Err("s0"); !errors.As(err, &conflict) ||
		conflict.Revision != 7 {
		t.Errorf("a conflict arrives as %v", err)
	}
	var refused *raftstore.RefusedError
	if err := FailureOf(&raftstore.RefusedError{Reason: "no"}).Err("s0"); !errors.As(err, &refused) ||
		refused.Reason != "no" {
		t.Errorf("a refusal arrives as %v", err)
	}
	if FailureOf(nil).Err("s0") != nil {
		t.Error("no error arrives as one")
	}
	if err := FailureOf(errors.New("other")).Err("s0"); err == nil || err.Error() != "member s0: other" {
		t.Errorf("another error arrives as %v", err)
	}
}

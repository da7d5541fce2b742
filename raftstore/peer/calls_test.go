package peer

import (
	"errors"
	"fmt"
	"testing"

	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/rpc"
)

// TestAnswersKeepTheirMeaning sends errors over the wire and back. Above all, an outcome that is
// unknown must not become a request that was certainly not executed, whatever else the error says.
func TestAnswersKeepTheirMeaning(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want error
	}{
		"unknown":                   {kv.ErrUnknownOutcome, kv.ErrUnknownOutcome},
		"unknown because it closes": {fmt.Errorf("%w: %w", kv.ErrUnknownOutcome, kv.ErrClosed), kv.ErrUnknownOutcome},
		"unknown, later unavailable": {fmt.Errorf("%w: %w", kv.ErrUnknownOutcome, kv.ErrUnavailable),
			kv.ErrUnknownOutcome},
		"something else":         {errors.New("what"), kv.ErrUnknownOutcome},
		"unavailable":            {kv.ErrUnavailable, kv.ErrUnavailable},
		"overloaded":             {kv.ErrOverloaded, kv.ErrOverloaded},
		"closed before it began": {kv.ErrClosed, kv.ErrUnavailable},
	} {
		kind, payload := Refuse(c.err)
		got := AnswerError(rpc.Frame{Kind: kind, Payload: payload})
		if !errors.Is(got, c.want) || errors.Is(got, kv.ErrUnavailable) != errors.Is(c.want, kv.ErrUnavailable) {
			t.Errorf("%s: %q arrives as %q", name, c.err, got)
		}
	}
}

package datakeys

import (
	"context"
	"log/slog"
	"time"
)

// Handover gives leadership to a server that has the keys, while this one leads without. Without
// such a server it leads all the same: the cluster needs a leader, and only a leader makes the
// state of the keys right.
type Handover struct {
	Keys interface {
		Ready(ctx context.Context) error
		Stored(ctx context.Context) (generation uint64, err error)
	}
	// To hands leadership over to a voter that has the keys of the generation.
	To     func(ctx context.Context, generation uint64) error
	Logger *slog.Logger

	tried time.Time // the last attempt, also of an earlier term
}

// handOverAgain is the pause between two attempts. Gossip may not know the others yet, a failed
// attempt delays writes, and two servers that show the keys and cannot use them would hand
// leadership to each other all the time.
const handOverAgain = 30 * time.Second

// Lead works while this server leads. No two calls overlap.
func (h *Handover) Lead(ctx context.Context) error {
	for warned := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(h.tried.Add(handOverAgain))):
		}
		cannot := h.Keys.Ready(ctx)
		if ctx.Err() != nil {
			return nil
		}
		h.tried = time.Now()
		if cannot == nil {
			continue
		}
		generation, err := h.Keys.Stored(ctx)
		if err == nil {
			err = h.To(ctx, generation)
		}
		if err != nil && !warned {
			warned = true
			h.Logger.Warn(
				"this server leads although it cannot read all objects: no other one that can is able to lead", "reason",
				cannot, "handOver", err, "retryIn", handOverAgain)
		}
	}
}

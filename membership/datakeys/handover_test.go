package datakeys

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// keysOf are a server's keys that are ready, or not.
type keysOf struct{ ready error }

func (k *keysOf) Ready(context.Context) error            { return k.ready }
func (k *keysOf) Stored(context.Context) (uint64, error) { return 7, nil }

// TestHandover: a leader without the keys gives leadership away at once, and again after a pause.
// The pause holds in the next term too: two servers that show the keys and cannot use them do not
// take turns without an end. With the keys it stays.
func TestHandover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys, began := &keysOf{errors.New("no key")}, time.Now()
		var at []time.Duration
		h := &Handover{Keys: keys, Logger: slog.New(slog.DiscardHandler),
			To: func(_ context.Context, generation uint64) error {
				if generation != 7 {
					t.Errorf("generation %d", generation)
				}
				at = append(at, time.Since(began))
				return errors.New("nobody can")
			}}
		for _, term := range []time.Duration{5 * time.Second, 5 * time.Second, 60 * time.Second} {
			ctx, cancel := context.WithTimeout(t.Context(), term)
			if err := h.Lead(ctx); err != nil {
				t.Error(err)
			}
			cancel()
		}
		if len(at) != 3 || at[0] != 0 || at[1] != handOverAgain || at[2] != 2*handOverAgain {
			t.Errorf("attempts at %v", at)
		}
		keys.ready = nil
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := h.Lead(ctx); err != nil || len(at) != 3 {
			t.Errorf("with the keys: %v, attempts at %v", err, at)
		}
	})
}

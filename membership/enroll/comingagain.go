package enroll

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/barque/barque/membership/join"
)

// joinPatience is for how long a machine that joins comes again to a server that is asked by too
// many.
const joinPatience = 5 * time.Minute

// ComingAgain asks until the server has time for an answer: one that has too many requests to join
// at once tells when to come again. Any other answer is returned, and so is that one after
// joinPatience or when the context ends.
func ComingAgain[A any](ctx context.Context, logger *slog.Logger, ask func() (A, error)) (A, error) {
	until := time.Now().Add(joinPatience)
	for {
		answer, err := ask()
		var refused *join.RefusedError
		if !errors.As(err, &refused) || refused.Status != http.StatusTooManyRequests {
			return answer, err
		}
		wait := max(refused.RetryAfter, time.Second)
		if time.Now().Add(wait).After(until) {
			return answer, err
		}
		logger.Warn("the server has too many requests to join; coming again", "server", refused.Server, "retryIn", wait, "err", err)
		select {
		case <-ctx.Done():
			return answer, errors.Join(context.Cause(ctx), err)
		case <-time.After(wait):
		}
	}
}

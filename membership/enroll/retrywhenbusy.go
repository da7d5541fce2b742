package enroll

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/barque/barque/membership/join"
)

// joinPatience is how long a joining machine retries at an overloaded server.
const joinPatience = 5 * time.Minute

// RetryWhenBusy repeats a request until the server has time for it. A server with too many join
// requests names the time of the next try. Any other answer is returned. That answer is returned as
// well after joinPatience, or when the context ends.
func RetryWhenBusy[A any](ctx context.Context, logger *slog.Logger, ask func() (A, error)) (A, error) {
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
		logger.Warn("the server has too many requests to join; trying again later", "server", refused.Server, "retryIn",
			wait, "err", err)
		select {
		case <-ctx.Done():
			return answer, errors.Join(context.Cause(ctx), err)
		case <-time.After(wait):
		}
	}
}

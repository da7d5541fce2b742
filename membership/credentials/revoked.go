package credentials

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/revocation"
)

const (
	// revokedSpread is the time over which many agents spread their questions for a newer list.
	revokedSpread = 2 * time.Second
	// revokedRetry is the pause after a question that no server answered.
	revokedRetry = 5 * time.Second
	// expelledAgain is the interval of log lines of an agent that was removed.
	expelledAgain = 10 * time.Minute
)

// FollowRevoked keeps an agent's list of revoked certificates as new as gossip shows that of a
// living server, until ctx ends.
func (ids *Agent) FollowRevoked(ctx context.Context, pool *gossip.Pool, list *revocation.List, logger *slog.Logger) error {
	var told time.Time
	for {
		changed := pool.Changed()
		wait := (<-chan time.Time)(nil)
		if version, _ := newest(pool, "", func(f gossip.Facts) uint64 { return f.Revoked }); version > list.Entries().Version {
			err := ids.fetchRevoked(ctx, list)
			var refused *join.RefusedError
			switch {
			case err == nil || ctx.Err() != nil:
			case errors.As(err, &refused) && refused.Status == http.StatusForbidden:
				if now := time.Now(); now.Sub(told) >= expelledAgain {
					told = now
					logger.Error("this agent was removed from the cluster; its pods go on, and nobody manages them", "err", err, "again", rejoinCommand(ids.record))
				}
				wait = time.After(expelledAgain)
			default:
				logger.Warn("the list of revoked certificates is not the newest", "retryIn", revokedRetry, "err", err)
				wait = time.After(revokedRetry)
			}
			if wait != nil {
				changed = nil // it changes all the time, and says nothing about the refusal
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-wait:
		}
	}
}

func (ids *Agent) fetchRevoked(ctx context.Context, list *revocation.List) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(rand.N(revokedSpread)):
	}
	err := errors.New("no server of the cluster is known")
	for _, s := range ids.toAsk() {
		var entries revocation.Entries
		if entries, err = ids.revokedFrom(ctx, s); err == nil {
			list.Set(entries.Version, entries.List)
			return nil
		}
	}
	return err
}

func (ids *Agent) revokedFrom(ctx context.Context, s join.Server) (entries revocation.Entries, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	client, err := join.NewClient(s.API.String(), ids.Trust, ids.Client.Certificate(), time.Now)
	if err != nil {
		return entries, err
	}
	defer client.Close()
	return client.Revoked(ctx)
}

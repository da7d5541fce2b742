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
	// revokedEvery is the pause between two questions that nothing asks for.
	revokedEvery = 3 * time.Minute
	// expelledRetry is the pause of an agent that is refused. An operator may let it in again, and
	// it is NotReady until it has noticed.
	expelledRetry = 20 * time.Second
	// expelledAgain is the interval of log lines of an agent that was removed.
	expelledAgain = 10 * time.Minute
)

// FollowRevoked keeps an agent's list of revoked certificates as new as gossip shows that of a
// living server, until ctx ends. It asks at the beginning and from time to time all the same:
// gossip may be cut off, or forged by who has its keys.
// lockedOut is told whether the servers refuse this agent's certificates, at each answer.
func (ids *Agent) FollowRevoked(
	ctx context.Context, pool *gossip.Pool, list *revocation.List, lockedOut func(bool), logger *slog.Logger,
) error {
	f := revokedFollower{Changed: pool.Changed, Have: func() uint64 { return list.Entries().Version },
		Shown: func() uint64 {
			version, _ := newest(pool, "", func(f gossip.Facts) uint64 { return f.Revoked })
			return version
		},
		Fetch:     func(ctx context.Context) error { return ids.fetchRevoked(ctx, list) },
		LockedOut: lockedOut,
		Again:     func() string { return rejoinCommand(ids.record) }, Logger: logger}
	return f.run(ctx)
}

// revokedFollower decides when an agent asks for the list.
type revokedFollower struct {
	Changed func() <-chan struct{} // closed when Shown may have changed
	Shown   func() uint64          // the newest version that gossip shows
	Have    func() uint64
	Fetch   func(ctx context.Context) error
	// LockedOut is told whether the servers refuse this agent's certificates.
	LockedOut func(bool)
	Again     func() string // the command by which the agent joins again
	Logger    *slog.Logger
}

func (f *revokedFollower) run(ctx context.Context) error {
	var told time.Time
	due := time.After(0)
	for {
		changed := f.Changed()
		if due == nil || f.Shown() > f.Have() {
			wait, failed := f.fetch(ctx, &told)
			due = time.After(wait)
			if failed {
				changed = nil // it changes all the time, and says nothing about the failure
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-due:
			due = nil
		}
	}
}

// fetch asks once, and returns the time until the next question. It has failed if this node may
// lack a newer list.
func (f *revokedFollower) fetch(ctx context.Context, told *time.Time) (next time.Duration, failed bool) {
	err := f.Fetch(ctx)
	if err == nil {
		f.LockedOut(false)
	}
	var refused *join.RefusedError
	switch {
	case ctx.Err() != nil:
	case errors.As(err, &refused) && refused.Status == http.StatusForbidden:
		f.LockedOut(true)
		if now := time.Now(); now.Sub(*told) >= expelledAgain {
			*told = now
			f.Logger.Error(
				"this agent was removed from the cluster, or its certificates were revoked; its pods go on, and nobody manages them", "err", err, "again", f.Again())
		}
		return expelledRetry, true
	case err != nil:
		f.Logger.Warn("the list of revoked certificates is not the newest", "retryIn", revokedRetry, "err", err)
		return revokedRetry, true
	case f.Shown() > f.Have():
		return revokedRetry, true // the server that gossip shows has not answered
	}
	return revokedEvery, false
}

// fetchRevoked asks the servers until one has a newer list. Others may lag.
func (ids *Agent) fetchRevoked(ctx context.Context, list *revocation.List) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(rand.N(revokedSpread)):
	}
	err := errors.New("no server of the cluster is known")
	answered, have := false, list.Entries().Version
	for _, s := range ids.toAsk() {
		entries, e := ids.revokedFrom(ctx, s, have)
		if e != nil {
			// A refusal says more than a server that is off.
			if _, refused := errors.AsType[*join.RefusedError](err); !refused {
				err = e
			}
			continue
		}
		answered = true
		if entries.Version > have {
			list.Update(entries.Version, entries.List)
			return nil
		}
	}
	if answered {
		return nil
	}
	return err
}

func (ids *Agent) revokedFrom(ctx context.Context, s join.Server, have uint64) (entries revocation.Entries, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	client, err := join.NewClient(s.API.String(), ids.Trust, ids.Client.Certificate(), time.Now)
	if err != nil {
		return entries, err
	}
	defer client.Close()
	return client.Revoked(ctx, have)
}

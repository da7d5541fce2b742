package keyring

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"
)

// RefresherConfig of a Refresher.
type RefresherConfig struct {
	Own *Own
	// Seen returns the highest generation of keys that a living server shows, and whether any other
	// server is seen to live.
	Seen func() (generation uint64, anyServer bool)
	// Changed returns a channel that is closed when Seen may say something else.
	Changed func() <-chan struct{}
	// Fetch asks servers for their keys until one has that generation, or a higher one. It fails
	// with ErrBarred when they say that this member does not belong to the cluster any more.
	Fetch func(ctx context.Context, generation uint64) (Ring, error)
	// Fresh is set for a node that has its keys from its admission and is not registered yet. No
	// server gives it keys before, and each question would be audited as a refusal.
	Fresh  bool
	Logger *slog.Logger
}

// ErrBarred is returned when a server refuses to hand out the keys.
var ErrBarred = errors.New("this node gets no gossip keys")

// Refresher gets the newest keys from a server when this member may not have them:
//
//   - when it starts, unless its keys are fresh: it may have been away during a rotation, and
//     nobody would understand it in the pool;
//   - when a server shows a higher generation;
//   - while it sees no server in the pool: they may speak with a key that it does not have.
//
// An agent learns of all keys in this way. A server has them from its store, and this is for one
// whose store is behind.
type Refresher struct{ config RefresherConfig }

// NewRefresher returns a Refresher.
func NewRefresher(c RefresherConfig) *Refresher { return &Refresher{c} }

const (
	// lonely is how often a member asks that sees no server.
	lonely = 10 * time.Second
	// spreadOver keeps the members of a large pool from asking at the same moment.
	spreadOver = 500 * time.Millisecond
	// minRetry is after how long a question is repeated that was not answered; that grows to
	// maxRetry, and to barredRetry when the answer is no.
	minRetry, maxRetry, barredRetry = time.Second, 15 * time.Second, time.Minute
)

// Run asks when there is a reason to, until ctx ends.
func (r *Refresher) Run(ctx context.Context) error {
	c := &r.config
	// next is when the next question may be asked, unless a server shows a higher generation than
	// known.
	started, retry, next, known := true, minRetry, time.Time{}, uint64(0)
	if c.Fresh {
		started, next, known = false, time.Now().Add(lonely), c.Own.Ring().Generation
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := c.Changed()
		own := c.Own.Ring().Generation
		seen, anyServer := c.Seen()
		if seen > known {
			known, retry, next = seen, minRetry, time.Time{}
		}
		wait := lonely
		switch now := time.Now(); {
		case !started && seen <= own && anyServer: // nothing is to be asked
		case now.Before(next):
			wait = next.Sub(now)
		default:
			if pause(ctx, rand.N(spreadOver)) != nil {
				return nil
			}
			err := r.refresh(ctx, max(seen, own), retry >= maxRetry)
			if err == nil {
				started, retry, wait = false, minRetry, lonely
				next = time.Now().Add(minRetry)
				break
			}
			if ctx.Err() != nil {
				return nil
			}
			most := maxRetry
			if errors.Is(err, ErrBarred) {
				most = barredRetry
			}
			wait = min(retry, most) // who was told no before may have been told by somebody else
			retry = min(2*wait, most)
			next = time.Now().Add(wait)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-timer.C:
		}
	}
}

// refresh asks; often means that it has failed for a while.
func (r *Refresher) refresh(ctx context.Context, generation uint64, often bool) error {
	ring, err := r.config.Fetch(ctx, generation)
	if err != nil {
		level := slog.LevelDebug // a server that is away is no news
		if errors.Is(err, ErrBarred) && often {
			level = slog.LevelWarn
		}
		r.config.Logger.Log(ctx, level, "no server tells the gossip keys", "err", err)
		return err
	}
	news, err := r.config.Own.Install(ring)
	if err != nil {
		r.config.Logger.Warn("gossip keys of the cluster are not in use here; trying again", "err", err)
		return err
	}
	if news {
		r.config.Logger.Info("gossip keys changed", "generation", ring.Generation, "from", "a server")
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

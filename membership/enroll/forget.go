package enroll

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/liveness"
	"github.com/barque/barque/pki"
)

// Who was removed is forgotten once it is dead, or nobody could tell a machine that is lost for
// good from one that an operator has to look after. Servers are removed from the store; an agent is
// removed by deleting its Node.

const (
	// removedAfter is how long an agent without a Node must have been gone: its Node may be news
	// that is under way.
	removedAfter = 10 * time.Second
	// AwayAfter is after how long an agent forgets another one that is gone. It does not know the
	// Nodes, and needs the servers only.
	AwayAfter = time.Hour
)

// memory is what a node knows of the others by gossip.
type memory interface {
	Members() []gossip.Member
	Forget(name string)
}

// ForgetRemoved forgets agents that have no Node and show no life, until the context ends. named
// returns the names of all Nodes, once they are known.
func ForgetRemoved(ctx context.Context, pool memory, named func() (names []string, known bool), logger *slog.Logger) error {
	ticker := time.NewTicker(forgetEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		names, known := named()
		if !known {
			continue
		}
		for _, name := range GoneAgents(pool.Members(), time.Now(), removedAfter) {
			if !slices.Contains(names, name) {
				logger.Info("an agent has no Node and shows no life: it is forgotten", "agent", name)
				pool.Forget(name)
			}
		}
	}
}

// GoneAgents returns the names of agents that are dead or have left, for some time.
func GoneAgents(members []gossip.Member, now time.Time, least time.Duration) []string {
	var names []string
	for _, m := range members {
		if m.Role == pki.RoleAgent && m.State != gossip.Alive && now.Sub(m.Since) >= least {
			names = append(names, m.Name)
		}
	}
	return names
}

// RememberServers keeps on disk who the servers are, for the next start. A disk that is full does
// not end the node for that: most of the servers are known from before. gone returns the names of
// those that are to be forgotten once they are dead: servers that were taken out of the store, and
// on an agent whoever is away for long.
func RememberServers(ctx context.Context, r *Record, pool *gossip.Pool, gone func() []string, logger *slog.Logger) error {
	ticker := time.NewTicker(forgetEvery)
	defer ticker.Stop()
	for {
		changed := pool.Changed()
		names := gone()
		for _, name := range names {
			pool.Forget(name)
		}
		if err := r.Remember(liveness.KnownServers(pool), names); err != nil {
			logger.Warn("cannot write down who the servers are, for the next start", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-ticker.C:
		}
	}
}

// forgetEvery is how often it is looked at who is to be forgotten.
const forgetEvery = 5 * time.Second

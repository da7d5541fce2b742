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

// A removed node is forgotten once it is dead. Otherwise a machine that is lost for good would look
// like one that needs an operator. Servers are removed from the store; an agent is removed by
// deleting its Node.

const (
	// removedAfter is how long an agent without a Node must have been gone: its Node may still be
	// on the way.
	removedAfter = 10 * time.Second
	// AwayAfter is the absence after which an agent forgets another agent. It does not know the
	// Nodes, and needs the servers only.
	AwayAfter = time.Hour
)

// memory is the gossip pool's interface for forgetting.
type memory interface {
	Members() []gossip.Member
	Forget(name string)
}

// ForgetRemoved forgets agents without a Node and without a sign of life, until the context ends.
// named returns the names of all Nodes, once they are synced.
func ForgetRemoved(
	ctx context.Context, pool memory, named func() (names []string, known bool), logger *slog.Logger,
) error {
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

// RememberServers keeps the list of servers on disk for the next start. A full disk does not end
// the node: most servers are recorded from before. gone returns the names to forget once dead:
// servers removed from the store, and on an agent those that are away for long.
func RememberServers(
	ctx context.Context, r *Record, pool *gossip.Pool, gone func() []string, logger *slog.Logger,
) error {
	ticker := time.NewTicker(forgetEvery)
	defer ticker.Stop()
	for {
		changed := pool.Changed()
		names := gone()
		for _, name := range names {
			pool.Forget(name)
		}
		if err := r.Remember(liveness.KnownServers(pool), names); err != nil {
			logger.Warn("cannot store the list of servers for the next start", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-ticker.C:
		}
	}
}

// forgetEvery is the interval of checks for nodes to forget.
const forgetEvery = 5 * time.Second

package node

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
)

// Who was removed is forgotten once it is dead, or nobody could tell a machine that is lost for
// good from one that an operator has to look after. Servers are removed from the store; an agent is
// removed by deleting its Node.

const (
	// removedAfter is how long an agent without a Node must have been gone: its Node may be news
	// that is under way.
	removedAfter = 10 * time.Second
	// awayAfter is after how long an agent forgets another one that is gone. It does not know the
	// Nodes, and needs the servers only.
	awayAfter = time.Hour
)

// startForgetting has this server forget agents that were removed.
func (s *server) startForgetting(ctx context.Context) error {
	nodes := s.api.Informers().Core().V1().Nodes().Informer()
	named := func() (names []string, known bool) { return nodes.GetStore().ListKeys(), nodes.HasSynced() }
	return s.stack.Start(ctx, lifecycle.Component{Name: "removed agents", Run: func(ctx context.Context) error {
		return forgetRemoved(ctx, s.pool, named, s.logger)
	}})
}

// memory is what a node knows of the others by gossip.
type memory interface {
	Members() []gossip.Member
	Forget(name string)
}

// forgetRemoved forgets agents that have no Node and show no life, until the context ends. named
// returns the names of all Nodes, once they are known.
func forgetRemoved(ctx context.Context, pool memory, named func() (names []string, known bool), logger *slog.Logger) error {
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
		for _, name := range goneAgents(pool.Members(), time.Now(), removedAfter) {
			if !slices.Contains(names, name) {
				logger.Info("an agent has no Node and shows no life: it is forgotten", "agent", name)
				pool.Forget(name)
			}
		}
	}
}

// goneAgents returns the names of agents that are dead or have left, for some time.
func goneAgents(members []gossip.Member, now time.Time, least time.Duration) []string {
	var names []string
	for _, m := range members {
		if m.Role == pki.RoleAgent && m.State != gossip.Alive && now.Sub(m.Since) >= least {
			names = append(names, m.Name)
		}
	}
	return names
}

package node

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/gossip"
)

// Who was removed is forgotten once it is dead, or nobody could tell a machine that is lost for good from one that an
// operator has to look after. Servers are removed from the store; an agent is removed by deleting its Node.

const (
	// removedAfter is how long an agent without a Node must have been gone: its Node may be news that is under way.
	removedAfter = 10 * time.Second
	// awayAfter is after how long an agent forgets another one that is gone. It does not know the Nodes, and needs the
	// servers only.
	awayAfter = time.Hour
)

// startForgetting has this server forget agents that were removed.
func (s *server) startForgetting(ctx context.Context) error {
	nodes := s.api.Informers().Core().V1().Nodes().Informer()
	return s.stack.Start(ctx, lifecycle.Component{Name: "removed agents", Run: func(ctx context.Context) error {
		ticker := time.NewTicker(forgetEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
			}
			if !nodes.HasSynced() {
				continue
			}
			named := sets.New(nodes.GetStore().ListKeys()...)
			for _, name := range goneAgents(s.pool.Members(), time.Now(), removedAfter) {
				if !named.Has(name) {
					s.logger.Info("an agent has no Node and shows no life: it is forgotten", "agent", name)
					s.pool.Forget(name)
				}
			}
		}
	}})
}

// goneAgents returns the names of agents that are dead or have left, for some time.
func goneAgents(members []gossip.Member, now time.Time, least time.Duration) []string {
	var names []string
	for _, m := range members {
		if m.Role == roleAgent && m.State != gossip.Alive && now.Sub(m.Since) >= least {
			names = append(names, m.Name)
		}
	}
	return names
}

package node

import (
	"context"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/pulse"
)

// pulsePatience is how long one question of the pulse waits for its answer: a round trip, and what
// a busy process takes.
const pulsePatience = 200 * time.Millisecond

// startLiveness gathers the evidence of who lives. With fast failure detection this server asks all
// nodes itself, whether it leads or not.
func (s *server) startLiveness(ctx context.Context) error {
	s.life = &liveness{pool: s.pool, store: s.store, tls: s.ids.kubeletClientTLS()}
	if !s.options.Times.Fast {
		return nil
	}
	p := pulse.New(pulse.Config{
		Nodes:   func() []string { return others(s.pool, s.options.Name) },
		Changed: s.pool.Changed,
		Ask:     s.pool.Ping,
		Logger:  s.logger.With("part", "pulse"),
	})
	s.life.pulse = p
	return s.stack.Start(ctx, lifecycle.Component{Name: "pulse", Run: p.Run})
}

// others are all nodes that have not left, dead ones included: gossip may be slow to learn that one
// is back.
func others(pool *gossip.Pool, self string) []string {
	var names []string
	for _, m := range pool.Members() {
		if m.Name != self && m.State != gossip.Left {
			names = append(names, m.Name)
		}
	}
	return names
}

// tuneGossip gives gossip's questions the pulse's patience: memberlist has one time for both. What
// is left of its own second goes to asking by way of others.
func tuneGossip(fast bool) func(*memberlist.Config) {
	if !fast {
		return nil
	}
	return func(c *memberlist.Config) { c.ProbeTimeout = pulsePatience }
}

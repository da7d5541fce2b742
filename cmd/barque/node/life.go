package node

import (
	"context"

	"github.com/barque/barque/apiserver/nodeleases"
	"github.com/barque/barque/cmd/barque/node/adapters"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/liveness"
	"github.com/barque/barque/membership/pulse"
)

// startLiveness collects the signs of life of all nodes. With fast failure detection every server
// probes all nodes, also one that does not lead.
func (s *server) startLiveness(ctx context.Context) error {
	config := liveness.Config{Pool: s.pool, Store: adapters.SilentServers{Store: s.store}, TLS: s.ids.KubeletTLS(),
		Labelled: nodeleases.IsMember, Logger: s.logger.With("part", "liveness")}
	if !s.options.Times.Fast {
		s.life = liveness.New(config)
		return nil
	}
	p := pulse.New(pulse.Config{
		Nodes:   func() []string { return liveness.Others(s.pool, s.options.Name) },
		Changed: s.pool.Changed,
		Ask:     s.pool.Ping,
		Logger:  s.logger.With("part", "pulse"),
	})
	config.Pulse = p
	s.life = liveness.New(config)
	return s.stack.Start(ctx, lifecycle.Component{Name: "pulse", Run: p.Run})
}

package node

import (
	"context"

	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/liveness"
	"github.com/barque/barque/network"
)

// startNode starts the part of a server that runs pods.
func (s *server) startNode(ctx context.Context) error {
	if s.options.NoNode {
		return nil
	}
	w := &worker{
		options: s.options, settings: s.settings,
		client:  s.api.LoopbackConfigAs("system:node:"+s.options.Name, "system:nodes"),
		tls:     credentials.KubeletServerTLS(s.ids.Kubelet, s.ids.Trust, s.options.KubeletTLS()),
		revoked: s.revoked.Check,
		changed: []func() <-chan struct{}{s.revoked.Changed, s.ids.Trust.Changed},
		labels:  nodeLabels(s.options, s.logger),
		health:  liveness.NewHealth(s.pool.SetHealth),
		leaving: s.pool.AnnounceLeaving,
		certs:   s.ids.Collectors(),
		logger:  s.logger,
		delay:   s.meter.Delay,
		made: func(packets *network.Network) {
			s.packets.Store(packets)
			s.conflicts.packets.Store(packets)
		},
		gateway: s.gateway,
	}
	return w.start(ctx, s.stack)
}

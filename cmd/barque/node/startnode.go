package node

import (
	"context"

	"github.com/barque/barque/cmd/barque/node/worker"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/liveness"
	"github.com/barque/barque/network"
)

// startNode starts the part of a server that runs pods.
func (s *server) startNode(ctx context.Context) error {
	if s.options.NoNode {
		return nil
	}
	w := &worker.Worker{
		Options: s.options, Settings: s.settings,
		Client:  s.api.LoopbackConfigAs("system:node:"+s.options.Name, "system:nodes"),
		TLS:     credentials.KubeletServerTLS(s.ids.Kubelet, s.ids.Trust, s.options.KubeletTLS()),
		Revoked: s.joining.revoked.Check,
		Changed: []func() <-chan struct{}{s.joining.revoked.Changed, s.ids.Trust.Changed},
		Health:  liveness.NewHealth(s.pool.SetHealth),
		Leaving: s.pool.AnnounceLeaving,
		Certs:   s.ids.Collectors(),
		Logger:  s.logger,
		Delay:   s.meter.Delay,
		Made: func(packets *network.Network) {
			s.packets.Store(packets)
			s.conflicts.TellBy(packets)
		},
		Gateway: s.gateway.shared,
		BGP:     s.late.bgp.Load(),
	}
	return w.Start(ctx, s.stack)
}

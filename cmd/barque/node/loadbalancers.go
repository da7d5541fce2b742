package node

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/controllers/servicelb"
	"github.com/barque/barque/edge/gateway"
	"github.com/barque/barque/edge/provider"
)

// addressPools is the provider of Services' addresses, for the status.
type addressPools = atomic.Pointer[provider.Provider]

// loadBalancers makes the provider of Services' addresses, nil where a cloud has its own.
func (s *server) loadBalancers(informers informers.SharedInformerFactory) (servicelb.Provider, error) {
	if s.options.CloudProvider != "" {
		return nil, nil
	}
	nodePorts, reserved := s.api.NodePorts(), map[netip.Addr]string{}
	for _, addr := range s.options.APIAddresses {
		reserved[addr] = "the Kubernetes API"
	}
	nodes := informers.Core().V1().Nodes()
	routes := gateway.NewPorts(s.gateway.shared.Objects, s.options.Gateway, nodes.Lister(), nodes.Informer())
	p, err := provider.New(provider.Config{
		Informers: informers, Gateway: routes, Logger: s.logger.With("part", "load balancers"),
		PodCIDRs: s.settings.ClusterCIDRs, Reserved: reserved,
		Ports: options.OwnPorts(s.options), FirstNodePort: int32(nodePorts.First), LastNodePort: int32(nodePorts.Last),
	})
	if err != nil {
		return nil, err
	}
	if err := legacyregistry.Registerer().Register(p); err != nil {
		return nil, err
	}
	s.gateway.pools.Store(p)
	return classPools{p, s.gateway.statuses}, nil
}

// classPools is the provider of Services' addresses. A class of Gateways may name a pool, so the
// writer of their statuses looks again when pools have changed.
type classPools struct {
	*provider.Provider
	statuses *gateway.Statuses
}

// Run implements servicelb.Provider.
func (c classPools) Run(ctx context.Context, config *rest.Config, changed func()) error {
	return c.Provider.Run(ctx, config, func() {
		c.statuses.Poke()
		changed()
	})
}

// shownRoutes bounds the faults of routes in the status.
const shownRoutes = 100

// edgeStatus returns the pools, and the faults of Services and routes, on the leader; nil
// elsewhere.
func (s *server) edgeStatus() *clusterstatus.EdgeStatus {
	if !s.addresses.Leads() || s.gateway.objects.Load() == nil {
		return nil
	}
	var out clusterstatus.EdgeStatus
	if p := s.gateway.pools.Load(); p != nil {
		for _, of := range p.Pools() {
			state := clusterstatus.PoolStatus{Name: of.Name, Used: of.Used, Free: of.Free}
			if !of.Ready {
				state.Problem = of.Message
			}
			out.Pools = append(out.Pools, state)
		}
		services, err := s.api.Informers().Core().V1().Services().Lister().List(labels.Everything())
		if err != nil {
			s.logger.Error("the status lacks the Services that wait for an address", "err", err)
		}
		out.Waiting = adminapi.Waiting(services)
	}
	nodes, err := s.api.Informers().Core().V1().Nodes().Lister().List(labels.Everything())
	if err != nil {
		s.logger.Error("the status lacks the BGP sessions of nodes", "err", err)
	}
	out.BGP = bgpStatus(nodes)
	faults := s.gateway.statuses.Faults(time.Now())
	if more := len(faults) - shownRoutes; more > 0 {
		faults, out.MoreRoutes = faults[:shownRoutes], more
	}
	for _, f := range faults {
		out.Routes = append(out.Routes, clusterstatus.RouteFault(f))
	}
	return &out
}

var _ servicelb.Provider = classPools{}

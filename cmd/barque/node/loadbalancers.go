package node

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"

	"github.com/barque/barque/controllers/servicelb"
	"github.com/barque/barque/edge/gateway"
	"github.com/barque/barque/edge/provider"
	"github.com/barque/barque/internal/balancers"
	"github.com/barque/barque/network"
)

// loadBalancers makes the provider of Services' addresses, nil where a cloud has its own.
func (s *server) loadBalancers(informers informers.SharedInformerFactory) (servicelb.Provider, error) {
	if s.options.CloudProvider != "" {
		return nil, nil
	}
	nodePorts, reserved := s.api.NodePorts(), map[netip.Addr]string{}
	for _, addr := range s.options.apiAddresses {
		reserved[addr] = "the Kubernetes API"
	}
	nodes := informers.Core().V1().Nodes()
	routes := gateway.NewPorts(s.gateway.objects, s.options.Gateway, nodes.Lister(), nodes.Informer())
	return provider.New(provider.Config{
		Informers: informers, Gateway: routes, Logger: s.logger.With("part", "load balancers"), PodCIDRs: s.settings.ClusterCIDRs, Reserved: reserved,
		Ports: ownPorts(s.options), FirstNodePort: int32(nodePorts.First), LastNodePort: int32(nodePorts.Last),
	})
}

// ownPorts are ports of the nodes that no Service may take over. Nodes lead packets to a Service's
// port away from any program that listens there, so these would lock the operator, or the cluster,
// out of the node.
func ownPorts(o *Options) map[balancers.Port]string {
	own := map[balancers.Port]string{}
	for port, whose := range map[uint16]string{
		22:            "SSH",
		o.APIPort:     "the Kubernetes API",
		o.PeerPort:    "the connections between servers",
		o.KubeletPort: "the kubelet",
		o.GossipPort:  "gossip",

		network.HealthPort: "the health of the node",
	} {
		own[balancers.Port{Protocol: corev1.ProtocolTCP, Port: int32(port)}] = whose
	}
	for port, whose := range map[uint16]string{
		o.GossipPort:    "gossip",
		o.Overlay.Port:  "the pod network",
		o.WireGuardPort: "the pod network",
	} {
		own[balancers.Port{Protocol: corev1.ProtocolUDP, Port: int32(port)}] = whose
	}
	return own
}

var _ servicelb.Provider = (*provider.Provider)(nil)

package options

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/internal/balancers"
	"github.com/barque/barque/network"
)

// OwnPorts are ports of the nodes that no Service may take over. Nodes lead packets to a Service's
// port away from any program that listens there, so these would lock the operator, or the cluster,
// out of the node.
func OwnPorts(o *Options) map[balancers.Port]string {
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

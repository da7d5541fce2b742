package node

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/edge/bgp"
	"github.com/barque/barque/internal/balancers"
)

// makeBGP makes the informers of BGPPeers and AddressPools of a server, which reads them as its
// node. They run whether the server has a node or not: the authorizer of nodes decides by them, and
// the leader leaves out addresses that are announced by BGP alone.
func (s *server) makeBGP() error {
	objects, err := bgp.NewObjects(s.api.LoopbackConfigAs("system:node:"+s.options.Name, "system:nodes"),
		s.logger.With("part", "bgp"))
	if err == nil {
		s.late.bgp.Store(objects)
	}
	return err
}

// needsPassword is the authorizer's question. Until the objects are there, nodes wait.
func (s *server) needsPassword(node, namespace, name string) bool {
	objects := s.late.bgp.Load()
	if objects == nil || namespace != bgp.SecretNamespace {
		return false
	}
	of, err := s.api.Informers().Core().V1().Nodes().Lister().Get(node)
	return err == nil && objects.NamesSecret(of.Labels, name)
}

// bgpStatus are the nodes' sessions, as the Nodes have them. What a node that is not Ready has
// told is old.
func bgpStatus(nodes []*corev1.Node) *clusterstatus.BGPStatus {
	var all []clusterstatus.BGPSession
	for _, n := range nodes {
		if !balancers.Ready(n) {
			continue
		}
		for _, s := range bgp.SessionsOf(n) {
			all = append(all, clusterstatus.BGPSession{Node: n.Name, Peer: s.Peer, Address: s.Address,
				Established: s.Established, Since: s.Since, Routes: s.Routes, Restart: s.Restart, Problem: s.Problem})
		}
	}
	return clusterstatus.BGPStatusOf(all)
}

package node

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/controllers/noderole"
	"github.com/barque/barque/pki"
)

// noteNodes lets the reports of this server tell of the Nodes, from now on.
func (s *server) noteNodes(context.Context) error {
	nodes := s.api.Informers().Core().V1().Nodes().Informer()
	s.nodes.Store(&nodes)
	return nil
}

// isServers tells whether the Node is marked as a server's.
func isServers(n *corev1.Node) bool {
	_, marked := n.Labels[noderole.Label]
	return marked
}

// formerServers are the former servers as this server knows them; none before it knows the Nodes.
func (s *server) formerServers() []clusterstatus.FormerServer {
	nodes, pool := s.nodes.Load(), s.met.Load()
	if nodes == nil || pool == nil || !(*nodes).HasSynced() {
		return nil
	}
	var servers []string
	for _, object := range (*nodes).GetStore().List() {
		n, ok := object.(*corev1.Node)
		if !ok || !isServers(n) {
			continue
		}
		if m, known := pool.Member(n.Name); !known || m.Role == pki.RoleServer { // people may mark an agent's Node
			servers = append(servers, n.Name)
		}
	}
	return clusterstatus.Former(servers, s.store.Members(), s.store.Gone())
}

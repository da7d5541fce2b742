package node

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/apiserver/nodeleases"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/controllers/noderole"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/liveness"
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

// isMember reports whether a Node is that of a member: it says so, or gossip knows the member.
func isMember(node *corev1.Node, inPool func(name string) (gossip.Member, bool)) bool {
	return nodeleases.IsMember(node) || liveness.InPool(node, inPool)
}

// runsBarque reports whether a Node's kubelet has said that it is Barque's. By that a Node counts
// as a member's where it was made before there was the label and its machine has been away since:
// whoever waits for all members must not forget one, and a foreign node that says so has itself
// waited for.
func runsBarque(node *corev1.Node) bool {
	return strings.Contains(node.Status.NodeInfo.KubeletVersion, "+barque.")
}

// roles tells who is a server, by the role that each member has proven. A node that is no member is
// none.
type roles struct{ pool *gossip.Pool }

func (r roles) IsServer(node *corev1.Node) (server, known bool) {
	m, known := r.pool.Member(node.Name)
	return m.Role == pki.RoleServer, known || !nodeleases.IsMember(node)
}

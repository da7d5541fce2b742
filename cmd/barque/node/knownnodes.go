package node

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/apiserver/nodeleases"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/controllers/noderole"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/liveness"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
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

// startForgetting has this server forget agents that were removed.
func (s *server) startForgetting(ctx context.Context) error {
	nodes := s.api.Informers().Core().V1().Nodes().Informer()
	named := func() (names []string, known bool) { return nodes.GetStore().ListKeys(), nodes.HasSynced() }
	return s.stack.Start(ctx, lifecycle.Component{Name: "removed agents", Run: func(ctx context.Context) error {
		return enroll.ForgetRemoved(ctx, s.pool, named, s.logger)
	}})
}

// succeeds tells whether this server's cluster goes on in place of the one with the ID.
func (s *server) succeeds(cluster string) bool {
	return slices.ContainsFunc(s.store.Predecessors(), func(p raftstore.Succession) bool { return p.Cluster == cluster })
}

// apartAfter is how long a server must run before it knows all by gossip.
const apartAfter = time.Minute

// apartAgents are those that this server knows; none before it has run for a while.
func (s *server) apartAgents() []clusterstatus.ApartAgent {
	nodes, pool := s.nodes.Load(), s.met.Load()
	if nodes == nil || pool == nil || !(*nodes).HasSynced() || time.Since(s.started) < apartAfter {
		return nil
	}
	var out []clusterstatus.ApartAgent
	for _, object := range (*nodes).GetStore().List() {
		if n, ok := object.(*corev1.Node); ok && isApart(n, pool.Member) {
			out = append(out, clusterstatus.ApartAgent{Name: n.Name, Cluster: s.strays.Cluster(n.Name)})
		}
	}
	slices.SortFunc(out, func(a, b clusterstatus.ApartAgent) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// isApart reports whether a Node is an agent's that is Ready though gossip does not know it. Nodes
// of others are never in the pool.
func isApart(n *corev1.Node, inPool func(name string) (gossip.Member, bool)) bool {
	_, known := inPool(n.Name)
	return !known && !isServers(n) && isReady(n) && (nodeleases.IsMember(n) || runsBarque(n))
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

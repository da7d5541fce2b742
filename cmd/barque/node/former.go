package node

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/controllers/noderole"
	"github.com/barque/barque/raftstore"
)

// A former server is one that the cluster had and has no more: its Node is there, as that of a
// server, and it is no member of the store. It was taken out, or the cluster was recovered, or
// began with a backup, without it. That is a state to pass through: it joins again, or an operator
// says that it does not come back by deleting its Node, as he does for an agent. Servers that were
// started with --no-node have no Node, so nothing is known of those once they are out.

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
func (s *server) formerServers() []FormerServer {
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
		if m, known := pool.Member(n.Name); !known || m.Role == roleServer { // people may mark an agent's Node
			servers = append(servers, n.Name)
		}
	}
	return former(servers, s.store.Members(), s.store.Gone())
}

// former are those of the servers that have a Node which are no members of the store.
func former(servers []string, members []raftstore.Member, gone map[string]raftstore.Removal) []FormerServer {
	var out []FormerServer
	for _, name := range servers {
		if slices.ContainsFunc(members, func(m raftstore.Member) bool { return m.Name == name }) {
			continue
		}
		f := FormerServer{Name: name}
		for _, r := range gone {
			if r.Name == name && r.At.After(f.At) { // it may have been one more than once
				f.At, f.Why, f.Dropped = r.At, r.Why, r.Dropped
			}
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b FormerServer) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Package members determines the members of the cluster from three sources. The store has the
// servers as its members. In gossip each node has proven its role. In the API each node has its
// Node object. A server belongs to the cluster while it is a member of the store, an agent while it
// has its Node. A Node may also be that of a foreign node, which other software runs.
package members

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
)

// Server is a member of the store. Its address is invalid if it is no IP address.
type Server struct {
	Name string
	Addr netip.Addr
}

// Pool is the interface of gossip.
type Pool interface {
	Members() []gossip.Member
	Member(name string) (gossip.Member, bool)
}

// Members knows the members of the cluster.
type Members struct {
	Servers func() []Server // the members of the store
	Pool    Pool
	Nodes   coreinformers.NodeInformer
	Marks
}

// Marks are the tests of a Node's labels.
type Marks struct {
	IsMember func(*corev1.Node) bool // its kubelet registered as that of a member
	IsServer func(*corev1.Node) bool // it is marked as a server's
}

// runsBarque reports whether a Node's kubelet has identified itself as Barque's. Such a Node counts
// as a member's although it may predate the label, with a machine that has been away since. A wait
// for all members must include it. A foreign node that claims to be Barque's is waited for as well.
func runsBarque(node *corev1.Node) bool {
	return strings.Contains(node.Status.NodeInfo.KubeletVersion, "+barque.")
}

// ServerNamed tells whether a server of that name is a member of the store.
func (m *Members) ServerNamed(name string) bool {
	return slices.ContainsFunc(m.Servers(), func(s Server) bool { return s.Name == name })
}

// MarkedServers returns the names of the Nodes that are marked as servers. A user may mark an
// agent's: a node that has proven to be an agent is left out.
func (m *Members) MarkedServers() (names []string) {
	for _, n := range m.nodes() {
		if !m.Marks.IsServer(n) {
			continue
		}
		if p, known := m.Pool.Member(n.Name); !known || p.Role == pki.RoleServer {
			names = append(names, n.Name)
		}
	}
	return names
}

func (m *Members) nodes() (nodes []*corev1.Node) {
	for _, object := range m.Nodes.Informer().GetStore().List() {
		if n, ok := object.(*corev1.Node); ok {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// Synced reports whether the Nodes are synced.
func (m *Members) Synced() bool { return m.Nodes.Informer().HasSynced() }

// NodeNames returns the names of all Nodes, and whether they are synced.
func (m *Members) NodeNames() (names []string, known bool) {
	nodes := m.Nodes.Informer()
	return nodes.GetStore().ListKeys(), nodes.HasSynced()
}

// Apart returns the sorted names of agents that are Ready although gossip does not know them.
func (m *Members) Apart() (names []string) {
	for _, n := range m.nodes() {
		if m.apart(n, m.Pool.Member) {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names
}

// apart reports whether a Node is an agent's that is Ready although gossip does not know it.
// Foreign Nodes are never in the pool.
func (m Marks) apart(n *corev1.Node, inPool func(name string) (gossip.Member, bool)) bool {
	_, known := inPool(n.Name)
	return !known && !m.IsServer(n) && isReady(n) && (m.IsMember(n) || runsBarque(n))
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// NameTaken keeps a second machine from taking the name of a living node or a voter.
func (m *Members) NameTaken(name string) error {
	if p, ok := m.Pool.Member(name); ok && p.State == gossip.Alive {
		return fmt.Errorf("a node named %q is alive at %s: give this machine another name with --name", name, p.Addr.Addr())
	}
	if m.ServerNamed(name) {
		return fmt.Errorf("a server named %q is a member of the store: give this machine another name with --name, or, if it is rebuilt and to take that one's place, --replace", name)
	}
	return nil
}

// AddressTaken keeps a machine from getting certificates for the address of another one.
func (m *Members) AddressTaken(name string, addr netip.Addr) error {
	for _, p := range m.Pool.Members() {
		if p.Name != name && p.Addr.Addr() == addr && (p.Role == pki.RoleServer || p.State == gossip.Alive) {
			return fmt.Errorf("the node address %s is that of %s %q: give this machine's own with --node-ip", addr, p.Role, p.Name)
		}
	}
	for _, s := range m.Servers() {
		if s.Name != name && s.Addr == addr {
			return fmt.Errorf("the node address %s is that of the server %q: give this machine's own with --node-ip, or remove that member first", addr, s.Name)
		}
	}
	return nil
}

// Roles returns the role that each member has proven. A foreign node has none.
type Roles struct {
	Pool     Pool
	IsMember func(*corev1.Node) bool
}

// IsServer implements noderole.Roles.
func (r Roles) IsServer(node *corev1.Node) (server, known bool) {
	m, known := r.Pool.Member(node.Name)
	return m.Role == pki.RoleServer, known || !r.IsMember(node)
}

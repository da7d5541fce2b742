// Package members determines the members of the cluster from three sources. The store has the
// servers as its members. In gossip each node has proven its role. In the API each node has its
// Node object. A server belongs to the cluster while it is a member of the store, an agent while it
// has its Node. A Node may also be that of a foreign node, which other software runs.
package members

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
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

// ServerNamed reports whether a server of that name is a member of the store.
func (m *Members) ServerNamed(name string) bool {
	return slices.ContainsFunc(m.Servers(), func(s Server) bool { return s.Name == name })
}

// IsAgent reports whether the name is that of a member Node of an agent.
func (m *Members) IsAgent(name string) bool {
	if m.ServerNamed(name) {
		return false
	}
	node, err := m.Nodes.Lister().Get(name)
	return err == nil && m.Marks.IsMember(node)
}

// Marked reports whether the Node of that name is marked as a server's.
func (m *Members) Marked(name string) bool {
	node, err := m.Nodes.Lister().Get(name)
	return err == nil && m.Marks.IsServer(node)
}

// AgentUIDs returns the UIDs of the Nodes of agents, and of former servers, by name, once they are
// synced.
func (m *Members) AgentUIDs() (map[string]string, bool) {
	if !m.Synced() {
		return nil, false
	}
	uids := map[string]string{}
	for _, n := range m.nodes() {
		if m.Marks.IsMember(n) && !m.ServerNamed(n.Name) {
			uids[n.Name] = string(n.UID)
		}
	}
	return uids, true
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
	c := readiness(n)
	return c != nil && c.Status == corev1.ConditionTrue
}

// readiness returns the Ready condition of a Node; nil without one.
func readiness(n *corev1.Node) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c
		}
	}
	return nil
}

// ProfileLabel is the label by which the Node of a member has its profile: a name, or none. Nodes
// of earlier versions do not have it.
const ProfileLabel = "barque.io/profile"

// Profiles returns the profiles of agents, by name. It has none for agents of earlier versions.
func (m *Members) Profiles() map[string]string { return m.Marks.profiles(m.nodes()) }

func (m Marks) profiles(nodes []*corev1.Node) map[string]string {
	profiles := map[string]string{}
	for _, n := range nodes {
		if profile, has := n.Labels[ProfileLabel]; has && m.IsMember(n) && !m.IsServer(n) {
			profiles[n.Name] = profile
		}
	}
	return profiles
}

// Unready is a Node that is not Ready, or that is missing although its member lives.
type Unready struct {
	Name string
	// Role is that of a member; empty for a foreign node.
	Role    string
	Address string
	Version string
	// Since is the time of the change, or of the Node's creation, and Why the reason in the Node.
	Since time.Time
	Why   string
	// Missing: the API has no such Node. Since is then when this server saw the member come alive.
	Missing bool
	// Unknown: it may be Ready or not, because its kubelet has been silent for long.
	Unknown bool
}

// Unready returns the Nodes that are not Ready, and the living agents without a Node, by name.
func (m *Members) Unready() (nodes []Unready) {
	for _, n := range m.nodes() {
		if !isReady(n) {
			nodes = append(nodes, m.unready(n))
		}
	}
	for _, p := range m.Pool.Members() {
		if p.Role != pki.RoleAgent { // a server may be without a node (--no-node)
			continue
		}
		if _, registered, _ := m.Nodes.Informer().GetStore().GetByKey(p.Name); p.State == gossip.Alive && !registered {
			nodes = append(nodes,
				Unready{Name: p.Name, Role: p.Role, Address: p.Addr.Addr().String(), Version: p.Facts.Version,
					Since: p.Since,
					Why:   "its kubelet has not registered it", Missing: true})
		}
	}
	slices.SortFunc(nodes, func(a, b Unready) int { return strings.Compare(a.Name, b.Name) })
	return nodes
}

func (m Marks) unready(n *corev1.Node) Unready {
	u := Unready{Name: n.Name, Version: n.Status.NodeInfo.KubeletVersion, Since: n.CreationTimestamp.Time,
		Why: "its kubelet has not reported a state"}
	switch {
	case m.IsServer(n):
		u.Role = pki.RoleServer
	case m.IsMember(n) || runsBarque(n):
		u.Role = pki.RoleAgent
	}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP && u.Address == "" {
			u.Address = a.Address
		}
	}
	if c := readiness(n); c != nil {
		u.Since, u.Why = c.LastTransitionTime.Time, cmp.Or(c.Message, c.Reason)
		u.Unknown = c.Status == corev1.ConditionUnknown
	}
	return u
}

// NameTaken keeps a second machine from taking the name of a living node or a voter.
func (m *Members) NameTaken(name string) error {
	if p, ok := m.Pool.Member(name); ok && p.State == gossip.Alive {
		again := "if this machine is that node, rebuilt, its end is noticed within some seconds: join again then"
		if p.Role == pki.RoleServer {
			again = "if this machine is that node, rebuilt, join with --replace, which waits until its end is noticed"
		}
		return fmt.Errorf("a node named %q is alive at %s: give this machine another name with --name; %s", name,
			p.Addr.Addr(), again)
	}
	if m.ServerNamed(name) {
		return fmt.Errorf(
			"a server named %q is a member of the store: give this machine another name with --name, or, if it is rebuilt and to take that one's place, --replace", name)
	}
	return nil
}

// AddressTaken keeps a machine from getting certificates for the address of another one.
func (m *Members) AddressTaken(name string, addr netip.Addr) error {
	for _, p := range m.Pool.Members() {
		if p.Name != name && p.Addr.Addr() == addr && (p.Role == pki.RoleServer || p.State == gossip.Alive) {
			again := "; if that node is dead, and this machine has its address now, its end is noticed within some minutes: join again then"
			if p.Role == pki.RoleServer {
				again = ", or remove that member first"
			}
			return fmt.Errorf("the node address %s is that of %s %q: give this machine's own with --node-ip%s", addr,
				p.Role, p.Name, again)
		}
	}
	for _, s := range m.Servers() {
		if s.Name != name && s.Addr == addr {
			return fmt.Errorf(
				"the node address %s is that of the server %q: give this machine's own with --node-ip, or remove that member first", addr, s.Name)
		}
	}
	return nil
}

// OfServer keeps an agent from the addresses that only a server's Node has, such as that of its
// second family, or that by which it is called from outside: gossip and the store know one of each.
func (m *Members) OfServer(name string, addr netip.Addr) error {
	for _, n := range m.nodes() {
		if n.Name != name && hasAddress(n, addr) && m.ServerNamed(n.Name) {
			return fmt.Errorf(
				"the node address %s is one of the server %q, by its Node: give this machine's own with --node-ip",
				addr, n.Name)
		}
	}
	return nil
}

func hasAddress(n *corev1.Node, addr netip.Addr) bool {
	return slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool {
		is, err := netip.ParseAddr(a.Address)
		return err == nil && is.Unmap() == addr.Unmap()
	})
}

// Requests describes the certificates of the nodes in gossip.
func (m *Members) Requests() (out []pki.Request) {
	for _, p := range m.Pool.Members() {
		out = append(out, join.NodeClient(p.Name), join.NodeServing(p.Name, p.Addr.Addr()))
	}
	return out
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

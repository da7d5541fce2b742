package devcluster

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/barque/barque/internal/atomicfile"
)

// Roles of a node.
const (
	Server = "server"
	Agent  = "agent"
)

// Plan is the intended state of the whole dev cluster, in Dir/dev.json.
type Plan struct {
	Name    string       `json:"name"`
	Dir     string       `json:"dir"`
	Subnet  netip.Prefix `json:"subnet"`
	APIPort uint16       `json:"apiPort"` // of the proxy on the host's loopback
	Nodes   []Node       `json:"nodes"`
	// Families of the cluster's addresses, the primary one first; IPv4 when empty. Subnet6 has the
	// nodes' IPv6 addresses, where there are any.
	Families []Family     `json:"families,omitempty"`
	Subnet6  netip.Prefix `json:"subnet6,omitzero"`
	// Args are appended to the command line of every node, after a check that it takes them.
	Args []string `json:"args,omitempty"`
	// ServerArgs are appended to those of servers, too.
	ServerArgs []string `json:"serverArgs,omitempty"`
	Proxy      *Process `json:"proxy,omitempty"`
	// Forwarding is the value of net.ipv4.ip_forward before the first of the existing clusters.
	// Down of the last cluster restores it.
	Forwarding string `json:"forwarding,omitempty"`
	// Forwarding6 is the same of net.ipv6.conf.all.forwarding, for clusters with IPv6.
	Forwarding6 string `json:"forwarding6,omitempty"`
	// Complete is set when Up has reached its end once.
	Complete bool `json:"complete"`
}

// Node is one machine of the cluster.
type Node struct {
	Name string `json:"name"`
	Role string `json:"role"`
	// Addr is of the cluster's primary family: the node is reached at it. Other is of the other
	// family, in clusters with IPv6.
	Addr    netip.Addr `json:"addr"`
	Other   netip.Addr `json:"other,omitzero"`
	Process *Process   `json:"process,omitempty"`
}

// WrongError is returned for an invalid name, number or node. No change was made.
type WrongError struct{ text string }

func (e *WrongError) Error() string { return e.text }

// ExitCode is the code with which the process should end.
func (e *WrongError) ExitCode() int { return 2 }

func wrong(format string, args ...any) error { return &WrongError{fmt.Sprintf(format, args...)} }

var clusterName = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,10}[a-z0-9])?$`)

// maxNodes follows from the addresses: servers take .11 to .19, agents .21 to .249.
const (
	maxServers = 9
	maxAgents  = 200
)

// checkSize refuses names and sizes that no cluster can have.
func checkSize(name string, servers, agents int) error {
	if !clusterName.MatchString(name) {
		return wrong("cluster name %q: want at most 12 lower-case letters, digits and dashes, beginning with a letter",
			name)
	}
	if servers < 1 || servers > maxServers || agents < 0 || agents > maxAgents {
		return wrong("want 1 to %d servers and 0 to %d agents, not %d and %d", maxServers, maxAgents, servers, agents)
	}
	return nil
}

func newPlan(o Options) (*Plan, error) {
	if err := errors.Join(checkSize(o.Name, o.Servers, o.Agents), checkFamilies(o.Families)); err != nil {
		return nil, err
	}
	used, err := addresses()
	if err != nil {
		return nil, err
	}
	subnet, subnet6, err := freeSubnets(used)
	if err != nil {
		return nil, err
	}
	p := &Plan{Name: o.Name, Dir: o.Dir, Families: o.Families, Subnet: subnet, Args: o.Args, ServerArgs: o.ServerArgs}
	if slices.Contains(o.Families, IPv6) {
		p.Subnet6 = subnet6
	}
	for i := 1; i <= o.Servers; i++ {
		p.Nodes = append(p.Nodes, p.newNode(fmt.Sprintf("s%d", i), Server, 10+i))
	}
	for i := 1; i <= o.Agents; i++ {
		p.Nodes = append(p.Nodes, p.newNode(fmt.Sprintf("a%d", i), Agent, 20+i))
	}
	return p, nil
}

// addresses returns those of this machine, with their networks.
func addresses() ([]netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list this machine's addresses: %w", err)
	}
	var all []netip.Prefix
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			all = append(all, prefix)
		}
	}
	return all, nil
}

// freeSubnets returns a /24 and its IPv6 network, which overlap none of the networks in use.
func freeSubnets(used []netip.Prefix) (subnet, subnet6 netip.Prefix, err error) {
	for second := 77; second < 100; second++ {
		subnet = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(second), 0, 0}), 24)
		subnet6 = netip.MustParsePrefix(fmt.Sprintf("fd00:10:%d::/64", second))
		if !slices.ContainsFunc(used, subnet.Overlaps) && !slices.ContainsFunc(used, subnet6.Overlaps) {
			return subnet, subnet6, nil
		}
	}
	return netip.Prefix{}, netip.Prefix{},
		errors.New(
			"no free network between 10.77.0.0/24 and 10.99.0.0/24 (fd00:10:77::/64 and fd00:10:99::/64): every one overlaps an address of this machine")
}

// Names derive from the plan. Interface names have at most 15 characters.

func (p *Plan) bridge() string         { return short(bridgePrefix, p.Name, "") }
func (p *Plan) veth(n *Node) string    { return short("bq", p.Name, n.Name) }
func (p *Plan) netns(n *Node) string   { return "barque-" + p.Name + "-" + n.Name }
func (p *Plan) table() string          { return "barque-dev-" + p.Name }
func (p *Plan) cgroup(n *Node) string  { return "/barque-dev-" + p.Name + "/" + n.Name }
func (p *Plan) DataDir(n *Node) string { return filepath.Join(p.Dir, n.Name) }
func (p *Plan) LogFile(n *Node) string { return filepath.Join(p.Dir, n.Name+".log") }
func (p *Plan) Kubeconfig() string     { return filepath.Join(p.Dir, "kubeconfig") }
func (p *Plan) path() string           { return planPath(p.Dir) }
func planPath(dir string) string       { return filepath.Join(dir, "dev.json") }
func (p *Plan) apiAddr(n *Node) string { return netip.AddrPortFrom(n.Addr, apiPort).String() }
func (p *Plan) nodeKubeconfig(n *Node) string {
	return filepath.Join(p.DataDir(n), "admin.kubeconfig")
}

const (
	// apiPort is the API's port on a node. Each node has its own address, so all use the default
	// port.
	apiPort      = 6443
	bridgePrefix = "bq"
)

// short makes an interface name from a cluster's and a node's name: readable where it fits,
// otherwise a digest.
func short(prefix, cluster, node string) string {
	name := strings.Trim(prefix+"-"+cluster+"-"+node, "-")
	if len(name) <= 15 {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return prefix + "-" + hex.EncodeToString(sum[:6])
}

// IsCluster reports whether the directory has the files of a dev cluster. The caller needs no
// permission to read them.
func IsCluster(dir string) bool {
	_, err := os.Stat(planPath(dir))
	return err == nil
}

// Load reads the plan in the directory; os.ErrNotExist when there is none.
func Load(dir string) (*Plan, error) {
	data, err := os.ReadFile(planPath(dir))
	if err != nil {
		return nil, err
	}
	p := new(Plan)
	if err := json.Unmarshal(data, p); err != nil {
		return nil,
			fmt.Errorf("%s is damaged (%w); `%s` removes what the cluster of that name made", planPath(dir), err,
				CommandLine(dir, "down", "--name", "NAME"))
	}
	return p, nil
}

func (p *Plan) save() error {
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(p.path(), append(data, '\n'), 0o600)
}

// Servers returns the addresses of the servers' APIs.
func (p *Plan) Servers() []string {
	var out []string
	for _, n := range p.servers() {
		out = append(out, p.apiAddr(n))
	}
	return out
}

// Node returns the node of that name.
func (p *Plan) Node(name string) (*Node, error) {
	for i := range p.Nodes {
		if p.Nodes[i].Name == name {
			return &p.Nodes[i], nil
		}
	}
	var names []string
	for _, n := range p.Nodes {
		names = append(names, n.Name)
	}
	return nil, wrong("there is no node %q; the nodes are %s", name, strings.Join(names, ", "))
}

func (p *Plan) servers() []*Node {
	var out []*Node
	for i := range p.Nodes {
		if p.Nodes[i].Role == Server {
			out = append(out, &p.Nodes[i])
		}
	}
	return out
}

// Package traces finds what pods leave on the nodes of a dev cluster: processes, cgroups, mounts
// and rules of the packet filter.
package traces

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/internal/osthread"
	"github.com/barque/barque/internal/procstat"
)

// Nodes are those of a cluster, seen from the machine.
type Nodes struct {
	cluster *clustertest.Cluster
	before  map[string]rules // of each node, before there was any pod
}

// New returns the nodes of a cluster that has no pods yet.
func New(of *clustertest.Cluster) (*Nodes, error) {
	n := &Nodes{cluster: of}
	before, err := n.rules()
	n.before = before
	return n, err
}

// Pod is one that has a container, seen from the machine: by its cgroup.
type Pod struct{ UID, Node string }

// RunningPods returns the pods of all nodes in which something runs beside the process that holds
// the sandbox.
func (n *Nodes) RunningPods() (out []Pod, err error) {
	root, err := n.cgroupRoot()
	if err != nil {
		return nil, err
	}
	seen := make(map[Pod]bool)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil { // it goes while we look
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if d.Name() != "cgroup.procs" {
			return nil
		}
		rel, _ := filepath.Rel(root, path)
		parts := strings.Split(rel, string(filepath.Separator))
		for _, part := range parts {
			if uid, ok := strings.CutPrefix(part, "pod"); ok && runsMore(path) {
				seen[Pod{uid, parts[0]}] = true
			}
		}
		return nil
	})
	for p := range seen {
		out = append(out, p)
	}
	return out, err
}

// runsMore reports whether a cgroup has a process that is no sandbox's.
func runsMore(procs string) bool {
	data, err := os.ReadFile(procs)
	if err != nil {
		return false
	}
	for _, text := range strings.Fields(string(data)) {
		pid, err := strconv.Atoi(text)
		if err != nil {
			continue
		}
		// One that ends while we look does not run.
		if args, err := procstat.Args(pid); err == nil && strings.Contains(strings.Join(args, " "), "hello") {
			return true
		}
	}
	return false
}

// cgroupRoot is where the cluster's cgroups are, in one of the hierarchies that have them.
func (n *Nodes) cgroupRoot() (string, error) {
	name := "barque-dev-" + n.cluster.ID
	for _, hierarchy := range []string{"", "memory", "pids", "cpu"} {
		path := filepath.Join("/sys/fs/cgroup", hierarchy, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no cgroup of the name %s was found", name)
}

// Remains are the traces of pods on nodes, by kind.
type Remains struct{ processes, cgroups, mounts, rules []string }

// Err is nil when there is nothing.
func (m Remains) Err() error {
	var all []error
	for _, text := range slices.Concat(m.processes, m.cgroups, m.mounts, m.rules) {
		all = append(all, errors.New(text))
	}
	return errors.Join(all...)
}

// Blind returns the kinds without any trace. While pods run such a kind is looked for in the
// wrong place.
func (m Remains) Blind() (kinds []string) {
	for _, k := range []struct {
		name string
		all  []string
	}{{"processes", m.processes}, {"cgroups", m.cgroups}, {"mounts", m.mounts}, {"rules", m.rules}} {
		if len(k.all) == 0 {
			kinds = append(kinds, k.name)
		}
	}
	return kinds
}

// Remains looks for the traces of pods on nodes.
func (n *Nodes) Remains() (m Remains, err error) {
	running, err := n.RunningPods()
	if err != nil {
		return m, err
	}
	for _, p := range running {
		m.processes = append(m.processes, fmt.Sprintf("pod %s still runs on %s", p.UID, p.Node))
	}
	root, err := n.cgroupRoot()
	if err != nil {
		return m, err
	}
	groups, err := filepath.Glob(filepath.Join(root, "*", "kubepods", "*", "pod*"))
	if err != nil {
		return m, err
	}
	for _, g := range groups {
		m.cgroups = append(m.cgroups, "cgroup "+g)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && strings.HasPrefix(fields[4], n.cluster.Dir+"/") &&
			(strings.Contains(fields[4], "/pods/") || strings.Contains(fields[4], "/cni-") ||
				strings.HasSuffix(fields[4], "/rootfs")) {
			m.mounts = append(m.mounts, "mount "+fields[4])
		}
	}
	now, err := n.rules()
	if err != nil {
		return m, err
	}
	for node, before := range n.before {
		if now[node] != before {
			m.rules = append(m.rules,
				fmt.Sprintf("node %s has %+v, and before there were pods it had %+v", node, now[node], before))
		}
	}
	return m, nil
}

// rules is how much is in a node's packet filter, and how many interfaces it has.
type rules struct{ chains, rules, elements, interfaces int }

func (n *Nodes) rules() (map[string]rules, error) {
	out := make(map[string]rules)
	for _, node := range n.cluster.Nodes() {
		var in rules
		err := osthread.InNetwork(n.cluster.Netns(node), func() (err error) {
			in, err = countRules()
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("rules of %s: %w", node, err)
		}
		out[node] = in
	}
	return out, nil
}

// countAllRules counts rules without reading them: github.com/google/nftables cannot read all that
// the kernel shows, as the direction of a connection, which has one byte.
func countAllRules() (int, error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC})
	all, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	return len(all), err
}

// countRules counts the rules in the network namespace of this thread.
func countRules() (in rules, err error) {
	conn, err := nftables.New()
	if err != nil {
		return in, err
	}
	chains, err := conn.ListChains()
	if err != nil {
		return in, err
	}
	in.chains = len(chains)
	if in.rules, err = countAllRules(); err != nil {
		return in, fmt.Errorf("list the rules: %w", err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		return in, err
	}
	for _, t := range tables {
		sets, err := conn.GetSets(t)
		if err != nil {
			return in, err
		}
		for _, s := range sets {
			elements, err := conn.GetSetElements(s)
			if err != nil {
				return in, err
			}
			in.elements += len(elements)
		}
	}
	links, err := net.Interfaces()
	in.interfaces = len(links)
	return in, err
}

package ask

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/devcluster"
	"github.com/barque/barque/internal/terminal"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/raftstore"
)

// DevDir returns the directory of the dev cluster whose kubeconfig or data directory is used. It is
// empty for any other cluster.
func (a *Asker) DevDir() string {
	var dirs []string
	if path, err := a.Kubeconfig(); err == nil {
		dirs = append(dirs, filepath.Dir(path))
	}
	for _, dir := range append(dirs, filepath.Dir(filepath.Clean(a.DataDir))) {
		if abs, err := filepath.Abs(dir); err == nil && devcluster.IsCluster(abs) {
			return abs
		}
	}
	return ""
}

// Procedures returns the commands for nodes: those of services, or of a dev cluster.
func (a *Asker) Procedures() clusterstatus.Procedures {
	dir := a.DevDir()
	if dir == "" {
		return clusterstatus.Services()
	}
	s, err := devcluster.Inspect(dir)
	if err != nil {
		s = nil // as for a user other than root: the status reports it
	}
	return devProcedures(dir, s)
}

// devProcedures returns the commands for the nodes of a dev cluster whose processes are in the
// state; s is nil if it is unknown.
func devProcedures(dir string, s *devcluster.Status) clusterstatus.Procedures {
	command := func(args ...string) string { return devcluster.CommandLine(dir, args...) }
	log := func(name string) string { return devcluster.FromHere(filepath.Join(dir, name+".log")) }
	p := clusterstatus.Procedures{
		Here:    true,
		Any:     command("status"),
		Start:   command("start", "NODE"),
		Again:   func(agent string) string { return command("start", agent) },
		Errors:  func(name string) string { return "grep level=ERROR " + log(name) },
		Logged:  func(name, text string) string { return terminal.Command("grep", text, log(name)) },
		Restart: func(name string) string { return command("stop", name) + "; " + command("start", name) },
		JoinAnew: func(server string) string {
			return command("stop", server) + "; " + command("start", "--wipe", server)
		},
		From: func(name, line string) string {
			return command(append([]string{"exec", name, "--"}, strings.Fields(line)...)...)
		},
		Look: func(string, string) string { return command("status") },
	}
	p.Recover = "barque cluster recover --inspect"
	if s == nil {
		return p
	}
	var start []string
	for _, n := range s.Nodes {
		if n.Role != devcluster.Server {
			continue
		}
		p.Recover += " --data-dir " + devcluster.FromHere(filepath.Join(dir, n.Name))
		if n.State != devcluster.Running {
			start = append(start, command(wakes(n.State), n.Name))
		}
	}
	switch {
	case len(start) > 0:
		p.Start = strings.Join(start, "; ")
	case s.Partitioned:
		p.Start = command("heal")
	}
	p.Look = func(name, _ string) string {
		i := slices.IndexFunc(s.Nodes, func(n devcluster.NodeStatus) bool { return n.Name == name })
		switch {
		case i < 0:
			return command("status")
		case s.Nodes[i].State != devcluster.Running:
			return command(wakes(s.Nodes[i].State), name)
		case s.Partitioned:
			return command("heal")
		}
		return "tail -n 100 " + log(name)
	}
	return p
}

// wakes is the dev command that lets a node run which is in the state.
func wakes(state string) string {
	if state == devcluster.Paused {
		return "resume"
	}
	return "start"
}

// LeftBehind reports whether a server has learned that it is superseded.
func LeftBehind(dir, name string) bool {
	p, err := devcluster.Load(dir)
	if err != nil {
		return false
	}
	n, err := p.Node(name)
	if err != nil {
		return false
	}
	by, err := raftstore.Superseded(enroll.StoreDir(p.DataDir(n)))
	return err == nil && by != nil
}

// Voters asks a server for the voters in its configuration.
func Voters(ctx context.Context, config *rest.Config) ([]devcluster.Voter, error) {
	o, err := remote.Observation(ctx, config, config.Host)
	if err != nil {
		return nil, err
	}
	return voters(o), nil
}

func voters(o *clusterstatus.Observation) []devcluster.Voter {
	own := new(raftstore.Status)
	for _, p := range o.Peers {
		if p.Member.Self && p.Status != nil {
			own = p.Status
		}
	}
	var all []devcluster.Voter
	for _, p := range o.Peers {
		v := devcluster.Voter{Name: p.Member.Name, Foreign: own.Foreign[p.Member.Address]}
		if s := own.Superseded; s != nil && s.By == p.Member.ID {
			v.Foreign = s.Successor
		}
		if p.Member.Voter {
			all = append(all, v)
		}
	}
	return all
}

package main

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/devcluster"
)

// devDir returns the directory of the dev cluster that is asked about: the one whose kubeconfig, or
// whose server's data directory, is used. It is empty when that is none.
func (a *asker) devDir() string {
	var dirs []string
	if path, err := findKubeconfig(a.kubeconfig); err == nil {
		dirs = append(dirs, filepath.Dir(path))
	}
	for _, dir := range append(dirs, filepath.Dir(filepath.Clean(a.dataDir))) {
		if abs, err := filepath.Abs(dir); err == nil && devcluster.IsCluster(abs) {
			return abs
		}
	}
	return ""
}

// procedures are the ways to get at nodes: those of services, or of a dev cluster.
func (a *asker) procedures() clusterstatus.Procedures {
	dir := a.devDir()
	if dir == "" {
		return clusterstatus.Services()
	}
	s, err := devcluster.Inspect(dir)
	if err != nil {
		s = nil // as for a user who is not root: then the status tells him so
	}
	return devProcedures(dir, s)
}

// devProcedures are those for the nodes of a dev cluster, whose processes are in the state; nil
// when that is not known.
func devProcedures(dir string, s *devcluster.Status) clusterstatus.Procedures {
	command := func(args ...string) string { return devcluster.CommandLine(dir, args...) }
	log := func(name string) string { return devcluster.FromHere(filepath.Join(dir, name+".log")) }
	p := clusterstatus.Procedures{
		Here:   true,
		Any:    command("status"),
		Start:  command("start", "NODE"),
		Errors: func(name string) string { return "grep level=ERROR " + log(name) },
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

package devcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/internal/procstat"
	"github.com/barque/barque/kubelet/containerd"
)

// Down removes everything that Up made, in whatever state. It can be repeated. Without the plan it
// finds the cluster by its name if anyway is set; that cluster may belong to another directory.
func Down(ctx context.Context, name, dir string, anyway bool, progress func(string, ...any)) error {
	if os.Geteuid() != 0 {
		return errors.New("removing a dev cluster needs root: run it with sudo")
	}
	if _, err := os.Stat(planPath(dir)); errors.Is(err, os.ErrNotExist) {
		p, err := find(name, dir)
		if err != nil {
			return err
		}
		if len(p.Nodes) > 0 && !anyway {
			return fmt.Errorf(
				"a dev cluster %q is there, but its plan is not in %s: run this where it was started, or with its --dir; if its files are lost, `%s` removes what can be found", name, dir, CommandLine(dir, "down", "--name", name))
		}
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) && len(p.Nodes) == 0 {
			progress("there is no dev cluster %q", name)
			return nil
		}
	}
	unlock, err := lock(dir)
	if err != nil {
		return err
	}
	defer unlock()
	p, err := Load(dir)
	if err != nil {
		if p, err = find(name, dir); err != nil {
			return err
		}
	}
	if err := p.stopProxies(); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for i := range p.Nodes {
		n := &p.Nodes[i]
		group.Go(func() error {
			if err := p.removeNode(groupCtx, n); err != nil {
				return fmt.Errorf("remove %s: %w", n.Name, err)
			}
			progress("%s removed", n.Name)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("%w (what is left is removed by another `%s`)", err, p.command("down", "--name", p.Name))
	}
	if err := p.giveNetworkBack(ctx); err != nil {
		return err
	}
	if err := p.removeFiles(); err != nil {
		return err
	}
	progress("network and files removed")
	return nil
}

func (p *Plan) giveNetworkBack(ctx context.Context) error {
	unlock, err := lockHost(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if p.Forwarding == "" { // the plan is lost; the bridge also has the value
		if p.Forwarding, err = forward4.noted(); err != nil {
			return err
		}
		if p.Forwarding6, err = forward6.noted(); err != nil {
			return err
		}
	}
	return p.removeNetwork()
}

// find rebuilds the part of a lost plan that the removal of the cluster needs.
func find(name, dir string) (*Plan, error) {
	p := &Plan{Name: name, Dir: dir}
	names, err := os.ReadDir("/run/netns")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, e := range names {
		if node, ok := nodeOf(name, e.Name()); ok {
			p.Nodes = append(p.Nodes, Node{Name: node})
		}
	}
	return p, nil
}

var nodeName = regexp.MustCompile(`^[sa][1-9][0-9]*$`)

// nodeOf returns the node of the cluster that a network namespace belongs to. Another cluster's
// name may begin with this one's.
func nodeOf(cluster, namespace string) (node string, ok bool) {
	node, ok = strings.CutPrefix(namespace, "barque-"+cluster+"-")
	return node, ok && nodeName.MatchString(node)
}

// stopProxies stops the proxy, also one of an Up that ended before it could record it.
func (p *Plan) stopProxies() error {
	all, err := processesWhere(func(pid int) (bool, error) {
		args := argsOf(pid)
		return len(args) > 1 && args[1] == "proxy" &&
			hasFlag(args, "--kubeconfig", func(v string) bool { return v == p.Kubeconfig() }), nil
	})
	if err != nil {
		return err
	}
	for _, process := range append(all, p.Proxy) {
		if err := process.stop(0); err != nil {
			return err
		}
	}
	return nil
}

// removeNode ends all processes of a node and removes its namespace, cgroup and data.
func (p *Plan) removeNode(ctx context.Context, n *Node) error {
	ours, err := p.own(n) // also a process started by hand, or missing from a lost plan
	if err != nil {
		return err
	}
	for _, process := range append(ours, n.Process) {
		if err := process.kill(); err != nil {
			return err
		}
	}
	if err := containerd.Purge(ctx, p.DataDir(n), p.cgroup(n)); err != nil {
		return err
	}
	// a process of another home that visits, as to call a Service, goes on
	left, err := processesIn(p.netns(n), procstat.Whole)
	if err != nil {
		return err
	}
	for _, process := range left {
		if err := process.kill(); err != nil {
			return err
		}
	}
	if err := p.removeNamespace(n); err != nil {
		return err
	}
	return os.RemoveAll(p.DataDir(n))
}

// removeFiles removes Up's other files, the plan last, and the directory if it is empty then.
func (p *Plan) removeFiles() error {
	var err error
	for i := range p.Nodes {
		err = errors.Join(err, remove(p.LogFile(&p.Nodes[i])), remove(p.tokenFile(&p.Nodes[i])))
	}
	// A killed command may have been writing one of these.
	err = errors.Join(err, atomicfile.Sweep(p.path()), atomicfile.Sweep(p.kubeletFile()))
	for _, name := range []string{"kubeconfig", "proxy.log", filepath.Base(p.kubeletFile()), "dev.json", "lock"} {
		err = errors.Join(err, remove(filepath.Join(p.Dir, name)))
	}
	if err != nil {
		return err
	}
	if entries, readErr := os.ReadDir(p.Dir); readErr == nil && len(entries) == 0 {
		return os.Remove(p.Dir)
	}
	return nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

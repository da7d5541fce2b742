package devcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/internal/osthread"
	"github.com/barque/barque/internal/procstat"
	"github.com/barque/barque/kubelet/containerd"
)

// edit makes one change to an existing cluster.
func edit(dir string, change func(*Plan) error) error {
	if _, err := existing(dir); err != nil {
		return err // and no lock is left behind
	}
	unlock, err := lockWithin(dir, editPatience)
	if err != nil {
		return err
	}
	defer unlock()
	p, err := existing(dir) // another command may have changed it before this one had the lock
	if err != nil {
		return err
	}
	return change(p)
}

// Know returns an error if a name is unknown or comes twice, before any node is changed.
func Know(dir string, names []string) error {
	p, err := existing(dir)
	if err != nil {
		return err
	}
	for i, name := range names {
		if _, err := p.Node(name); err != nil {
			return err
		}
		if slices.Contains(names[:i], name) {
			return fmt.Errorf("%s is named twice", name)
		}
	}
	return nil
}

func existing(dir string) (*Plan, error) {
	p, err := Load(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("there is no dev cluster in %s; `%s` makes one", FromHere(dir), CommandLine(dir, "up"))
	}
	if errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("the dev cluster in %s is root's: run it with sudo (%w)", FromHere(dir), err)
	}
	if err != nil {
		return nil, err
	}
	return p, p.adopt()
}

// adopt finds nodes' processes that the plan did not start, such as those of `dev exec`, and enters
// them into the plan.
func (p *Plan) adopt() error {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Process.Alive() {
			continue
		}
		there, err := processesIn(p.netns(n), procstat.Partial) // a thread of it may be elsewhere
		if err != nil {
			return fmt.Errorf("look for the process of %s: %w", n.Name, err)
		}
		for _, process := range there {
			if isNode(argsOf(process.PID), directoryOf(process.PID), p.DataDir(n)) {
				n.Process = process
				break
			}
		}
	}
	return nil
}

// Kill ends a node's Barque and containerd as kill -9 does. Pods go on, as they do when Barque
// stops on a machine. With machine they end too, as after a loss of power.
func Kill(ctx context.Context, dir, name string, machine bool) error {
	return edit(dir, func(p *Plan) error {
		n, err := p.Node(name)
		if err != nil {
			return err
		}
		ours, err := p.own(n)
		if err != nil {
			return err
		}
		if len(ours) == 0 && !machine { // a machine's pods may be left
			return fmt.Errorf("%s does not run, so nothing was killed; `%s` ends its pods, too", name,
				p.command("kill", "--machine", name))
		}
		// All processes are killed before the first is waited for: a machine dies at once.
		for _, process := range ours {
			err = errors.Join(err, process.signal(syscall.SIGKILL))
		}
		for _, process := range ours {
			err = errors.Join(err, process.kill())
		}
		if err != nil || !machine {
			return err
		}
		return containerd.Purge(ctx, p.DataDir(n), p.cgroup(n))
	})
}

// Voter is a server that has a vote in the store.
type Voter struct {
	Name    string
	Foreign string // the other cluster that it belongs to now, or that has its address; empty for none
}

// Voters asks a server for the voters that it knows.
type Voters func(ctx context.Context, config *rest.Config) ([]Voter, error)

// Start starts a node that was killed or stopped. It waits until a server is ready, unless too few
// voters run for that: then it reports this to progress.
func Start(ctx context.Context, dir, name string, voters Voters, progress func(format string, args ...any)) error {
	var plan *Plan
	var n *Node
	err := edit(dir, func(p *Plan) (err error) {
		plan = p
		if n, err = p.Node(name); err != nil {
			return err
		}
		if n.Process.Alive() {
			return fmt.Errorf("%s runs already", name)
		}
		return p.startNode(n, "")
	})
	if err != nil || n.Role != Server {
		return err
	}
	// The lock is released: a ready server needs a quorum, which may need the start of another
	// server.
	if _, err = plan.waitServing(ctx, n, startPatience, voters); errors.Is(err, errTooFew) {
		progress("%s runs, and will be ready when more than half of the servers with a vote do: start another one",
			name)
		return nil
	}
	if errors.Is(err, ErrLeftBehind) {
		return fmt.Errorf("%s will not be ready: %w", name, err)
	}
	return err
}

// editPatience bounds the wait of a command on one node for other such commands.
const editPatience = 10 * time.Second

// startPatience is how long a server may take until it is ready.
const startPatience = time.Minute

// errTooFew is why a server cannot become ready.
var errTooFew = errors.New("not more than half of the servers with a vote run")

// ErrLeftBehind is why a server cannot become ready, and must not.
var ErrLeftBehind = errors.New("another cluster goes on in place of its own")

// quorum returns nil when more than half of the voters run or cannot be seen. The plan does not
// know the voters.
func (p *Plan) quorum(voters []Voter) error {
	now, err := existing(p.Dir) // another command may be starting some
	if err != nil || len(voters) == 0 {
		return nil
	}
	running, short := 0, errTooFew
	for _, v := range voters {
		switch n, err := now.Node(v.Name); {
		case v.Foreign != "":
			short = fmt.Errorf("%w: %s is of cluster %s by now", ErrLeftBehind, v.Name, v.Foreign)
		case err != nil || n.Process.Alive() && !n.Process.Paused():
			running++
		}
	}
	if running > len(voters)/2 {
		return nil
	}
	return short
}

// Stop ends a node in order: leadership is handed over, pods go on. A node that does not run counts
// as stopped.
func Stop(dir, name string) error {
	return edit(dir, func(p *Plan) error {
		n, err := p.Node(name)
		if err != nil {
			return err
		}
		return n.Process.stop(30 * time.Second)
	})
}

// Pause stops the processes of a node's Barque and containerd with SIGSTOP.
func Pause(dir, name string) error { return signalNode(dir, name, syscall.SIGSTOP) }

// Resume lets a paused node go on.
func Resume(dir, name string) error { return signalNode(dir, name, syscall.SIGCONT) }

func signalNode(dir, name string, s syscall.Signal) error {
	return edit(dir, func(p *Plan) error {
		n, err := p.Node(name)
		if err != nil {
			return err
		}
		if !n.Process.Alive() {
			return fmt.Errorf("%s does not run; `%s` starts it", name, p.command("start", name))
		}
		ours, err := p.own(n)
		for _, process := range ours {
			err = errors.Join(err, process.signal(s))
		}
		return err
	})
}

// Partition cuts the nodes off from all others and from this machine. It replaces an earlier
// partition.
func Partition(dir string, names []string) error {
	return edit(dir, func(p *Plan) error { return p.partition(names) })
}

// Heal ends the partition.
func Heal(dir string) error { return edit(dir, (*Plan).heal) }

// Exec runs a command in a node's network namespace, with this process's terminal.
func Exec(ctx context.Context, dir, name string, command []string) error {
	p, err := existing(dir)
	if err != nil {
		return err
	}
	n, err := p.Node(name)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// An interruption ends it like a command in a shell, not by SIGKILL.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.Kubeconfig(), "BARQUE_DATA_DIR="+p.DataDir(n))
	if err := osthread.InNetwork(p.netns(n), cmd.Start); err != nil {
		return err
	}
	return signalled(ctx, ended(cmd))
}

// signalled gives a command that a signal has ended the code that shells have for that. An
// interrupted one was ended by the signal that Exec sends, whichever came from outside.
func signalled(ctx context.Context, err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	switch {
	case !ok || !status.Signaled():
		return err
	case ctx.Err() != nil:
		return &exitcode.Error{Code: exitcode.Interrupted}
	}
	return &exitcode.Error{Code: 128 + int(status.Signal())}
}

// ended waits for a command, and returns an error unless it has ended well.
func ended(cmd *exec.Cmd) error {
	err := cmd.Wait()
	if cmd.ProcessState != nil && cmd.ProcessState.Success() {
		return nil // also after an interruption, for which Wait returns the context's error
	}
	return err
}

// own returns the node's Barque processes: the server or agent, and its containerd. Shims,
// containers and other commands are not among them.
func (p *Plan) own(n *Node) ([]*Process, error) {
	all, err := processesIn(p.netns(n), procstat.Partial) // threads of theirs may be elsewhere
	if err != nil {
		return nil, err
	}
	var out []*Process
	for _, process := range all {
		if args := argsOf(process.PID); isNode(args, directoryOf(process.PID), p.DataDir(n)) ||
			isContainerd(args, p.DataDir(n)) {
			out = append(out, process)
		}
	}
	return out, nil
}

// Barque's processes are identified by their arguments: the binary may have any name, and another
// build may have replaced it.

// isNode reports whether arguments, in a working directory, are a server's or an agent's with this
// data directory.
func isNode(args []string, workDir, dataDir string) bool {
	return len(args) > 1 && (args[1] == Server || args[1] == Agent) && hasFlag(args, "--data-dir", func(v string) bool {
		if !filepath.IsAbs(v) {
			v = filepath.Join(workDir, v)
		}
		return filepath.Clean(v) == dataDir
	})
}

// isContainerd reports whether arguments are those of the containerd of the node with this data
// directory.
func isContainerd(args []string, dataDir string) bool {
	return len(args) > 1 && args[1] == containerd.Command &&
		hasFlag(args, "--config", func(v string) bool { return strings.HasPrefix(v, dataDir+"/") })
}

func hasFlag(args []string, flag string, value func(string) bool) bool {
	for i, arg := range args {
		if v, ok := strings.CutPrefix(arg, flag+"="); ok {
			return value(v)
		}
		if arg == flag {
			return i+1 < len(args) && value(args[i+1])
		}
	}
	return false
}

// directoryOf returns the working directory of a process; empty when it has ended.
func directoryOf(pid int) string {
	dir, err := procstat.WorkDir(pid)
	if err != nil {
		return ""
	}
	return dir
}

// argsOf returns the arguments of a process, if it has any; nil when it has ended.
func argsOf(pid int) []string {
	args, err := procstat.Args(pid)
	if err != nil {
		return nil
	}
	return args
}

// States of a node's process.
const (
	Running = "running"
	Paused  = "paused"
	Dead    = "dead"
)

// NodeStatus is the state of a node, seen from outside.
type NodeStatus struct {
	Name  string `json:"name"`
	Role  string `json:"role"`
	Addr  string `json:"address"`
	State string `json:"state"`
	PID   int    `json:"pid,omitempty"`
}

// Status is the state of the cluster, seen from outside.
type Status struct {
	Name        string       `json:"name"`
	Kubeconfig  string       `json:"kubeconfig"`
	Endpoint    string       `json:"endpoint"`
	Proxy       bool         `json:"proxyRunning"`
	Partitioned bool         `json:"partitioned"`
	Nodes       []NodeStatus `json:"nodes"`
}

// Inspect reports the state of every node's processes.
func Inspect(dir string) (*Status, error) {
	p, err := existing(dir)
	if err != nil {
		return nil, err
	}
	s := &Status{Name: p.Name, Kubeconfig: p.Kubeconfig(), Endpoint: fmt.Sprintf("https://127.0.0.1:%d", p.APIPort),
		Proxy: p.Proxy.Alive()}
	if s.Partitioned, err = p.partitioned(); err != nil {
		return nil, err
	}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		status := NodeStatus{Name: n.Name, Role: n.Role, Addr: n.Addr.String(), State: Dead}
		if n.Process.Alive() {
			status.State, status.PID = Running, n.Process.PID
			if n.Process.Paused() {
				status.State = Paused
			}
		}
		s.Nodes = append(s.Nodes, status)
	}
	return s, nil
}

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

// edit runs one change of a cluster that exists.
func edit(dir string, change func(*Plan) error) error {
	if _, err := existing(dir); err != nil {
		return err // and no lock is left behind
	}
	unlock, err := lockWithin(dir, editPatience)
	if err != nil {
		return err
	}
	defer unlock()
	p, err := existing(dir) // another command may have changed it before the lock was had
	if err != nil {
		return err
	}
	return change(p)
}

// Know returns an error if a name is of no node, or comes twice: before anything is done to the
// others.
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

// adopt finds the processes of nodes that were started in another way than by a plan, as by `dev
// exec`: they are these nodes all the same.
func (p *Plan) adopt() error {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Process.Alive() {
			continue
		}
		there, err := processesIn(p.netns(n), procstat.Visits) // a thread of it may be elsewhere
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

// Kill ends a node's Barque and containerd as kill -9 does. Its pods go on, as they do when
// Barque stops on a machine; with machine they end too, as when the machine loses power.
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
		if len(ours) == 0 && !machine { // of a machine the pods may be left
			return fmt.Errorf("%s does not run, so nothing was killed; `%s` ends its pods, too", name, p.command("kill", "--machine", name))
		}
		// All are told before any is waited for: a machine dies at once.
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
	Foreign string // the other cluster that it is of by now, or that is at its address; empty when none is
}

// Voters asks a server who has a vote, as far as it knows.
type Voters func(ctx context.Context, config *rest.Config) ([]Voter, error)

// Start starts a node that was killed or stopped. A server is waited for until it is ready, unless
// too few of those that vote run for that: then progress is told so.
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
	// Not under the lock: a server is ready when there is a quorum, for which another one may have
	// to be started too.
	if _, err = plan.waitServing(ctx, n, startPatience, voters); errors.Is(err, errTooFew) {
		progress("%s runs, and will be ready when more than half of the servers with a vote do: start another one", name)
		return nil
	}
	if errors.Is(err, ErrLeftBehind) {
		return fmt.Errorf("%s will not be ready: %w", name, err)
	}
	return err
}

// editPatience is how long a command that does one thing to one node waits for others that do, too.
const editPatience = 10 * time.Second

// startPatience is how long a server may take until it is ready.
const startPatience = time.Minute

// errTooFew is why a server cannot become ready.
var errTooFew = errors.New("not more than half of the servers with a vote run")

// ErrLeftBehind is why a server cannot become ready, and should not.
var ErrLeftBehind = errors.New("another cluster goes on in place of its own")

// quorum is nil when more than half of the voters run, as far as can be seen from here: the plan
// does not say who has a vote. What cannot be seen counts as running.
func (p *Plan) quorum(voters []Voter) error {
	now, err := existing(p.Dir) // others may be starting some
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

// Stop ends a node in order: leadership is handed over, pods go on. One that does not run is
// stopped already.
func Stop(dir, name string) error {
	return edit(dir, func(p *Plan) error {
		n, err := p.Node(name)
		if err != nil {
			return err
		}
		return n.Process.stop(30 * time.Second)
	})
}

// Pause stops a node's Barque and containerd in the middle of whatever they do.
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

// Partition cuts the nodes off from all others and from this machine. It replaces an earlier one.
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
	// It ends as one that was started by hand does, not by SIGKILL.
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
		return nil // also if it was told to stop: then Wait returns the context's error, as if nothing had run
	}
	return err
}

// own returns the node's processes that are Barque itself: the node's own and its containerd.
// Shims and containers are not among them, nor are commands that somebody runs there.
func (p *Plan) own(n *Node) ([]*Process, error) {
	all, err := processesIn(p.netns(n), procstat.Visits) // threads of theirs may be elsewhere
	if err != nil {
		return nil, err
	}
	var out []*Process
	for _, process := range all {
		if args := argsOf(process.PID); isNode(args, directoryOf(process.PID), p.DataDir(n)) || isContainerd(args, p.DataDir(n)) {
			out = append(out, process)
		}
	}
	return out, nil
}

// Barque's processes are known by their arguments: the binary may have any name, and another build
// may lie in its place by now.

// isNode tells whether these are the arguments, in the working directory, of a server or an agent
// with this data directory.
func isNode(args []string, workDir, dataDir string) bool {
	return len(args) > 1 && (args[1] == Server || args[1] == Agent) && hasFlag(args, "--data-dir", func(v string) bool {
		if !filepath.IsAbs(v) {
			v = filepath.Join(workDir, v)
		}
		return filepath.Clean(v) == dataDir
	})
}

// isContainerd tells whether these are those of the containerd of the node with this data
// directory.
func isContainerd(args []string, dataDir string) bool {
	return len(args) > 1 && args[1] == containerd.Command && hasFlag(args, "--config", func(v string) bool { return strings.HasPrefix(v, dataDir+"/") })
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

// NodeStatus is what can be seen of a node from outside.
type NodeStatus struct {
	Name  string `json:"name"`
	Role  string `json:"role"`
	Addr  string `json:"address"`
	State string `json:"state"`
	PID   int    `json:"pid,omitempty"`
}

// Status is what can be seen of the cluster from outside.
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
	s := &Status{Name: p.Name, Kubeconfig: p.Kubeconfig(), Endpoint: fmt.Sprintf("https://127.0.0.1:%d", p.APIPort), Proxy: p.Proxy.Alive()}
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

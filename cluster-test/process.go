package clustertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/procstat"
)

// `barque dev` acts on one node at a time, and no faster than a command starts. These functions act
// on several nodes at the same moment.

// A node's processes are known by their arguments, as `barque dev` knows them: the binary under
// test may have any name, and another build may lie in its place by now.

// pids returns the processes whose arguments match.
func pids(match func(args []string) bool) ([]int, error) {
	all, err := procstat.All()
	if err != nil {
		return nil, err
	}
	var out []int
	for _, pid := range all {
		if pid == os.Getpid() {
			continue
		}
		if args, err := procstat.Args(pid); err == nil && len(args) > 0 && match(args) {
			out = append(out, pid)
		}
	}
	return out, nil
}

// argument returns the argument after a flag.
func argument(args []string, flag string) string {
	if i := slices.Index(args, flag); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

// isNode reports whether these are the arguments of the node's own process.
func (c *Cluster) isNode(node string, args []string) bool {
	return len(args) > 1 && (args[1] == "server" || args[1] == "agent") &&
		argument(args, "--data-dir") == c.DataDir(node)
}

// isContainerd reports whether these are the arguments of the node's containerd.
func (c *Cluster) isContainerd(node string, args []string) bool {
	return len(args) > 1 && args[1] == "containerd" &&
		strings.HasPrefix(argument(args, "--config"), c.DataDir(node)+"/")
}

// processes are all that is Barque itself on a node: its own process and its containerd. That none
// runs is an error.
func (c *Cluster) processes(node string) ([]int, error) {
	found, err := pids(func(args []string) bool { return c.isNode(node, args) || c.isContainerd(node, args) })
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("no process of %s runs", node)
	}
	return found, err
}

// CPUWait is how long the threads of a node's processes have waited for a CPU since they began, all
// together; 0 if none runs.
func (c *Cluster) CPUWait(node string) (sum time.Duration) {
	found, _ := c.processes(node) // none is no error here
	for _, pid := range found {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) // the pattern is well-formed
		for _, file := range threads {
			var ran, waited time.Duration
			data, err := os.ReadFile(file)
			if err != nil {
				continue // it has ended
			}
			if _, err := fmt.Sscan(string(data), &ran, &waited); err == nil {
				sum += waited
			}
		}
	}
	return sum
}

// Signal sends a signal to Barque's own processes on the nodes: the node's process and its
// containerd, no pods. A node without such a process is an error: a fault that breaks nothing is a
// fault of the test.
func (c *Cluster) Signal(s syscall.Signal, nodes ...string) error {
	_, err := c.signal(s, nodes)
	return err
}

func (c *Cluster) signal(s syscall.Signal, nodes []string) (told []int, err error) {
	for _, n := range nodes {
		found, e := pids(func(args []string) bool { return c.isNode(n, args) || c.isContainerd(n, args) })
		err = errors.Join(err, e)
		hit := 0
		for _, pid := range found {
			switch e := syscall.Kill(pid, s); {
			case e == nil:
				told, hit = append(told, pid), hit+1
			case !errors.Is(e, syscall.ESRCH):
				err = errors.Join(err, fmt.Errorf("signal process %d of %s: %w", pid, n, e))
			}
		}
		if hit == 0 {
			err = errors.Join(err, fmt.Errorf("send %v to %s: no process of it runs", s, n))
		}
	}
	return told, err
}

// KillNodes ends all that is Barque itself on the nodes, as kill -9 does, and waits until it has
// ended. Pods go on. A node of which nothing runs is an error.
func (c *Cluster) KillNodes(ctx context.Context, nodes ...string) error {
	told, err := c.signal(syscall.SIGKILL, nodes)
	if err != nil {
		return err
	}
	return Poll(ctx, await.Hang, func(context.Context) error {
		for _, pid := range told {
			if stat, gone := procstat.Read(pid); gone == nil && stat.Runs() {
				return fmt.Errorf("process %d does not end", pid)
			}
		}
		return nil
	})
}

// StartNode starts a node that was killed or stopped, and waits until it serves. Another one that
// starts at the same time may have to be waited for.
func (c *Cluster) StartNode(ctx context.Context, node string) error {
	return Poll(ctx, 3*time.Minute, func(ctx context.Context) error {
		r := c.DevResult(ctx, "start", node)
		if r.Error == nil || strings.Contains(r.Err, "runs already") {
			return nil
		}
		return r.Error
	})
}

// Containerd returns the process of a node's own containerd.
func (c *Cluster) Containerd(node string) (pid int, err error) {
	found, err := pids(func(args []string) bool { return c.isContainerd(node, args) })
	if err != nil {
		return 0, err
	}
	if len(found) == 0 {
		return 0, fmt.Errorf("%s has no containerd of its own that runs", node)
	}
	return found[0], nil
}

// KillContainerd kills a node's containerd, and nothing else. It returns the process that it was.
func (c *Cluster) KillContainerd(node string) (pid int, err error) {
	if pid, err = c.Containerd(node); err != nil {
		return 0, err
	}
	return pid, syscall.Kill(pid, syscall.SIGKILL)
}

// KillShim kills one of a node's shims, which stand between containerd and a pod, and reports
// whether there was one.
func (c *Cluster) KillShim(node string) (killed bool, err error) {
	target, err := os.Stat(filepath.Join("/run/netns", c.Netns(node)))
	if err != nil {
		return false, err
	}
	all, err := pids(func(args []string) bool { return filepath.Base(args[0]) == "containerd-shim-runc-v2" })
	if err != nil {
		return false, err
	}
	for _, pid := range all {
		// They are in their node's network namespace; one that has ended meanwhile is nowhere.
		there, err := procstat.InNetwork(pid, target)
		if err != nil {
			return false, err
		}
		if there != procstat.Absent {
			return true, syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return false, nil
}

// Alive reports whether a node's own process runs.
func (c *Cluster) Alive(node string) bool {
	found, err := pids(func(args []string) bool { return c.isNode(node, args) })
	return err == nil && len(found) > 0
}

package clustertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// What `barque dev` does to one node at a time, and not faster than a command starts, is done here to several nodes at the
// same moment.

// processesOf returns the processes in a node's network namespace that run a program of the name.
func (c *Cluster) processesOf(node, program string) ([]int, error) {
	target, err := os.Stat(filepath.Join("/run/netns", c.Netns(node)))
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil || filepath.Base(strings.TrimSuffix(path, " (deleted)")) != program {
			continue
		}
		if ns, err := os.Stat(fmt.Sprintf("/proc/%d/ns/net", pid)); err == nil && os.SameFile(ns, target) {
			out = append(out, pid)
		}
	}
	return out, nil
}

// Signal sends a signal to all that is Barque itself on the nodes: the node's process and its containerd, no pods.
func (c *Cluster) Signal(s syscall.Signal, nodes ...string) error {
	_, err := c.signal(s, nodes)
	return err
}

func (c *Cluster) signal(s syscall.Signal, nodes []string) (told []int, err error) {
	for _, n := range nodes {
		pids, e := c.processesOf(n, "barque")
		told, err = append(told, pids...), errors.Join(err, e)
	}
	for _, pid := range told {
		if e := syscall.Kill(pid, s); e != nil && !errors.Is(e, syscall.ESRCH) {
			err = errors.Join(err, fmt.Errorf("signal process %d: %w", pid, e))
		}
	}
	return told, err
}

// KillNodes ends all that is Barque itself on the nodes, as kill -9 does, and waits until it has ended. Pods go on.
func (c *Cluster) KillNodes(ctx context.Context, nodes ...string) error {
	told, err := c.signal(syscall.SIGKILL, nodes)
	if err != nil {
		return err
	}
	return Poll(ctx, 20*time.Second, func(context.Context) error {
		for _, pid := range told {
			if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !bytes.Contains(stat, []byte(") Z ")) {
				return fmt.Errorf("process %d does not end", pid)
			}
		}
		return nil
	})
}

// StartNode starts a node that was killed or stopped, and waits until it serves. Another one that starts at the same time
// may have to be waited for.
func (c *Cluster) StartNode(ctx context.Context, node string) error {
	return Poll(ctx, 3*time.Minute, func(ctx context.Context) error {
		r := c.DevResult(ctx, "start", node)
		if r.Error == nil || strings.Contains(r.Err, "runs already") {
			return nil
		}
		return r.Error
	})
}

// KillContainerd kills a node's containerd, and nothing else.
func (c *Cluster) KillContainerd(node string) error {
	pids, err := c.processesOf(node, "barque")
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && bytes.Contains(line, []byte("\x00containerd\x00")) {
			return syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return fmt.Errorf("%s has no containerd of its own that runs", node)
}

// KillShim kills one of a node's shims, which stand between containerd and a pod, and reports whether there was one.
func (c *Cluster) KillShim(node string) (killed bool, err error) {
	pids, err := c.processesOf(node, "containerd-shim-runc-v2")
	if err != nil || len(pids) == 0 {
		return false, err
	}
	return true, syscall.Kill(pids[0], syscall.SIGKILL)
}

// Alive says whether a node's own process runs.
func (c *Cluster) Alive(node string) bool {
	pids, err := c.processesOf(node, "barque")
	return err == nil && len(pids) > 0
}

package clustertest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
)

// machine is what of the machine cannot be told apart by a cluster's name.
type machine struct {
	files      []string // where containerd's shims and the CNI library keep notes
	forwarding string
}

func lookAround() (*machine, error) {
	m := &machine{}
	for _, pattern := range []string{"/run/barque/*", "/var/lib/cni/results/*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		m.files = append(m.files, found...)
	}
	data, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	m.forwarding = strings.TrimSpace(string(data))
	return m, err
}

// leftovers is an error for everything of the cluster that is still on this machine.
func (c *Cluster) leftovers() error {
	var errs []error
	left := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("left behind: "+format, args...))
	}
	for _, look := range []func(func(string, ...any)) error{c.leftProcesses, c.leftMounts, c.leftFiles, c.leftNetwork} {
		if err := look(left); err != nil {
			errs = append(errs, fmt.Errorf("look for what is left behind: %w", err))
		}
	}
	return errors.Join(errs...)
}

func (c *Cluster) leftProcesses(left func(string, ...any)) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// A process that ends while we look has left nothing.
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		groups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		text := string(bytes.ReplaceAll(command, []byte{0}, []byte{' '}))
		if strings.Contains(text, c.Dir+"/") || strings.Contains(string(groups), c.cgroup()) {
			left("process %d: %s", pid, text)
		}
	}
	return nil
}

func (c *Cluster) leftMounts(left func(string, ...any)) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, c.Dir+"/") || strings.Contains(line, "/barque-"+c.ID+"-") {
			left("mount %s", strings.TrimSpace(line))
		}
	}
	return nil
}

func (c *Cluster) leftFiles(left func(string, ...any)) error {
	for _, pattern := range []string{c.Dir, c.mirrors(), c.images(), "/run/netns/barque-" + c.ID + "-*", "/sys/fs/cgroup" + c.cgroup(), "/sys/fs/cgroup/*" + c.cgroup()} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, f := range found {
			left("%s", f)
		}
	}
	now, err := lookAround()
	if err != nil {
		return err
	}
	// While another cluster lives on this machine, nobody knows whose these are.
	if !barqueRuns() {
		for _, f := range now.files {
			if !slices.Contains(c.before.files, f) {
				left("%s", f)
			}
		}
		if now.forwarding != c.before.forwarding {
			left("net.ipv4.ip_forward is %s, it was %s", now.forwarding, c.before.forwarding)
		}
	}
	return nil
}

func (c *Cluster) leftNetwork(left func(string, ...any)) error {
	links, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Name == "bq-"+c.ID || strings.HasPrefix(l.Name, "bq-"+c.ID+"-") {
			left("interface %s", l.Name)
		}
	}
	tables, err := (&nftables.Conn{}).ListTables()
	if err != nil {
		return err
	}
	for _, t := range tables {
		if strings.Contains(t.Name, c.ID) {
			left("nftables table %s", t.Name)
		}
	}
	return nil
}

func (c *Cluster) cgroup() string { return "/barque-dev-" + c.ID }

// barqueRuns says whether any barque runs on this machine.
func barqueRuns() bool {
	executables, _ := filepath.Glob("/proc/[0-9]*/exe")
	return slices.ContainsFunc(executables, func(link string) bool {
		path, err := os.Readlink(link)
		return err == nil && filepath.Base(strings.TrimSuffix(path, " (deleted)")) == "barque"
	})
}

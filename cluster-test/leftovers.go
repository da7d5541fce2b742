package clustertest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/barque/barque/internal/procstat"
)

// Where containerd's shims and the CNI library keep notes, for all nodes of a machine.
const (
	shimSockets = "/run/barque"
	cniNotes    = "/var/lib/cni/results"
)

// forwarding is the one setting of the machine that all clusters share.
func forwarding() (string, error) {
	data, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	return strings.TrimSpace(string(data)), err
}

// forwardingBefore is the setting that the cluster must leave behind, before it is made; empty
// beside another Barque, whose setting it is. The last cluster to go puts back the setting from
// before the first one, which this process has not seen.
func (c *Cluster) forwardingBefore() (string, error) {
	if c.othersHere() {
		return "", nil
	}
	return forwarding()
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
	all, err := procstat.All()
	if err != nil {
		return err
	}
	var errs []error
	for _, pid := range all {
		if pid == os.Getpid() {
			continue
		}
		args, err := procstat.Args(pid)
		groups, groupsErr := procstat.Cgroups(pid)
		for _, err := range []error{err, groupsErr} {
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // a process that ends while we look has left nothing
				errs = append(errs, fmt.Errorf("process %d: %w", pid, err))
			}
		}
		text := strings.Join(args, " ")
		if strings.Contains(text, c.Dir+"/") || inCgroup(groups, c.cgroup()) {
			left("process %d: %s", pid, text)
		}
	}
	return errors.Join(errs...)
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
	for _, pattern := range []string{c.Dir, c.mirrors(), c.images(), "/run/netns/barque-" + c.ID + "-*",
		"/sys/fs/cgroup" + c.cgroup(), "/sys/fs/cgroup/*" + c.cgroup()} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, f := range found {
			left("%s", f)
		}
	}
	own, err := c.sharedFiles(shimSockets, cniNotes)
	if err != nil {
		return err
	}
	for _, f := range own {
		left("%s", f)
	}
	return nil
}

// leftSettings is an error for the setting of the machine that the cluster has not put back. It
// does not change by waiting. While another Barque is on this machine, or has been, its owner
// is unknown.
func (c *Cluster) leftSettings() error {
	others := c.othersHere()
	now, err := forwarding()
	// none came or went meanwhile
	if err == nil && c.forwarding != "" && now != c.forwarding && !others && !c.othersHere() {
		err = fmt.Errorf("left behind: net.ipv4.ip_forward is %s, it was %s", now, c.forwarding)
	}
	return err
}

// othersHere reports whether another Barque runs on this machine, or has left the cgroups of its
// pods or the bridge of its cluster.
func (c *Cluster) othersHere() bool {
	for _, pattern := range []string{"/sys/fs/cgroup/barque*", "/sys/fs/cgroup/*/barque*"} {
		found, _ := filepath.Glob(pattern)
		if slices.ContainsFunc(found,
			func(path string) bool { return filepath.Base(path) != filepath.Base(c.cgroup()) }) {
			return true
		}
	}
	links, _ := net.Interfaces()
	return slices.ContainsFunc(links,
		func(l net.Interface) bool { return strings.HasPrefix(l.Name, "bq-") && !c.ownLink(l.Name) }) ||
		barqueRuns()
}

// ownLink reports whether a network interface of this machine is one of the cluster's.
func (c *Cluster) ownLink(name string) bool {
	return name == "bq-"+c.ID || strings.HasPrefix(name, "bq-"+c.ID+"-")
}

// sharedFiles are the files of this cluster's nodes in directories that all clusters of a machine
// share: the sockets of shims, in a directory that is named by the hash of the node's data
// directory, and the notes of the CNI library, which name it.
func (c *Cluster) sharedFiles(sockets, notes string) ([]string, error) {
	nodes := slices.Clone(c.nodes)
	for i := range 9 { // also of a cluster that a test has made itself
		nodes = append(nodes, fmt.Sprintf("s%d", i+1), fmt.Sprintf("a%d", i+1))
	}
	slices.Sort(nodes)
	var own []string
	for _, n := range slices.Compact(nodes) {
		sum := sha256.Sum256([]byte(c.DataDir(n)))
		dir := filepath.Join(sockets, hex.EncodeToString(sum[:6]))
		if _, err := os.Stat(dir); err == nil {
			own = append(own, dir)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	found, err := filepath.Glob(filepath.Join(notes, "*"))
	if err != nil {
		return nil, err
	}
	for _, note := range found {
		text, err := os.ReadFile(note)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // another cluster removes its own
			return nil, err
		}
		if bytes.Contains(text, []byte(c.Dir+"/")) {
			own = append(own, note)
		}
	}
	return own, nil
}

func (c *Cluster) leftNetwork(left func(string, ...any)) error {
	links, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, l := range links {
		if c.ownLink(l.Name) {
			left("interface %s", l.Name)
		}
	}
	tables, err := (&nftables.Conn{}).ListTables()
	if err != nil {
		return err
	}
	for _, t := range tables {
		if t.Name == "barque-dev-"+c.ID {
			left("nftables table %s", t.Name)
		}
	}
	return nil
}

// inCgroup reports whether a process with these groups (proc(5), cgroup) is in one or below it.
func inCgroup(groups, cgroup string) bool {
	for line := range strings.Lines(groups) {
		if strings.Contains(strings.TrimSpace(line)+"/", cgroup+"/") {
			return true
		}
	}
	return false
}

func (c *Cluster) cgroup() string { return "/barque-dev-" + c.ID }

// barqueRuns reports whether any barque runs on this machine.
func barqueRuns() bool {
	executables, _ := filepath.Glob("/proc/[0-9]*/exe")
	return slices.ContainsFunc(executables, func(link string) bool {
		path, err := os.Readlink(link)
		return err == nil && filepath.Base(strings.TrimSuffix(path, " (deleted)")) == "barque"
	})
}

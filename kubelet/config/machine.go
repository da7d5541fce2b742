package config

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/utils/ptr"
)

// Machine has the properties of the node's machine. Its files are the kernel's; tests give others.
type Machine struct {
	Address netip.AddrPort // of the kubelet's server
	Swaps   string         // /proc/swaps
	Cgroups string         // /sys/fs/cgroup
}

// PlaceError is returned for an address or a port that differs from the kubelet server's. No
// restart mends it.
type PlaceError struct{ text string }

func (e *PlaceError) Error() string { return "the kubelet's configuration: " + e.text }

// Settle checks the fields that depend on the machine, and sets those that the machine decides. It
// fails with a PlaceError where the file and the node's options do not fit together.
func Settle(c *Configuration, m Machine) error {
	var place, wrong string
	switch at := m.Address.Addr(); {
	case !covers(c.Address, at):
		place = fmt.Sprintf(
			"address: %s: the kubelet listens on the node's address alone: remove it, or want %s, which --node-ip sets",
			c.Address, at)
	case c.Port != 0 && c.Port != int32(m.Address.Port()):
		place = fmt.Sprintf("port: %d: want %d: remove it, or set the port with --kubelet-port", c.Port,
			m.Address.Port())
	case ptr.Deref(c.FailSwapOn, false) && swap(m.Swaps) != "":
		wrong = fmt.Sprintf(
			"failSwapOn: true, and this machine swaps to %s: run swapoff -a and remove swap from /etc/fstab, or set failSwapOn: false", swap(m.Swaps))
	case ptr.Deref(c.FailCgroupV1, false) && !unified(m.Cgroups):
		wrong = fmt.Sprintf(
			"failCgroupV1: true, and %s is cgroup v1: boot with systemd.unified_cgroup_hierarchy=1, or set failCgroupV1: false", m.Cgroups)
	}
	if place != "" {
		return &PlaceError{place}
	}
	if wrong != "" {
		return fmt.Errorf("the kubelet's configuration: %s", wrong)
	}
	c.Address, c.Port = m.Address.Addr().String(), int32(m.Address.Port())
	return nil
}

// covers reports whether a server for one address may listen on another one alone: they are equal,
// or the first is the wildcard.
func covers(address string, at netip.Addr) bool {
	if address == "" {
		return true
	}
	want, err := netip.ParseAddr(address)
	return err == nil && (want.IsUnspecified() || want.Unmap() == at.Unmap())
}

// swap returns the first swap file or device of the machine, or "". A kernel without swap has no
// such file.
func swap(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for heading := true; lines.Scan(); heading = false {
		if fields := strings.Fields(lines.Text()); !heading && len(fields) > 0 {
			return fields[0]
		}
	}
	return ""
}

// unified reports cgroup v2.
func unified(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "cgroup.controllers"))
	return err == nil
}

// MaxPods returns the maximum of pods for a number of CPUs, by maxPods and podsPerCore.
func MaxPods(c *Configuration, cpus int) int64 {
	if perCore := int64(c.PodsPerCore) * int64(cpus); perCore > 0 {
		return min(perCore, int64(c.MaxPods))
	}
	return int64(c.MaxPods)
}

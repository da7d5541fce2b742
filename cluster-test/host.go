package clustertest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/barque/barque/internal/procstat"
)

// Observations and acts from the machine itself, behind the cluster's back.

// ContainerPIDs returns the processes of a container, the one that the runtime started first: it is
// process 1 there.
func ContainerPIDs(t testing.TB, containerID string) []int {
	t.Helper()
	_, id, ok := strings.Cut(containerID, "://")
	if !ok || id == "" {
		t.Fatalf("%q is not a container's id", containerID)
	}
	all, err := procstat.All()
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, pid := range all {
		if groups, err := procstat.Cgroups(pid); err == nil && strings.Contains(groups, id) {
			if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err == nil && isFirst(string(status)) {
				out = append([]int{pid}, out...)
			} else {
				out = append(out, pid)
			}
		}
	}
	if len(out) == 0 {
		t.Fatalf("container %s has no process on this machine", containerID)
	}
	return out
}

// isFirst reports whether a process, by its status in /proc, is process 1 of its innermost
// PID namespace.
func isFirst(status string) bool {
	for line := range strings.Lines(status) {
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			f := strings.Fields(ids)
			return len(f) > 0 && f[len(f)-1] == "1"
		}
	}
	return false
}

// KillContainer kills a container's first process.
func KillContainer(t testing.TB, containerID string) {
	t.Helper()
	if err := syscall.Kill(ContainerPIDs(t, containerID)[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// CgroupFile reads a control file of a container's cgroup: the first that is there of a file of
// version 1, with its controller, and one of version 2.
func CgroupFile(t testing.TB, containerID, controller, v1, v2 string) string {
	t.Helper()
	groups, err := procstat.Cgroups(ContainerPIDs(t, containerID)[0])
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(groups) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		file := ""
		for _, name := range strings.Split(f[1], ",") {
			if name == controller {
				file = filepath.Join("/sys/fs/cgroup", controller, f[2], v1)
			}
		}
		if f[1] == "" {
			file = filepath.Join("/sys/fs/cgroup", f[2], v2)
		}
		if data, err := os.ReadFile(file); file != "" && err == nil {
			return strings.TrimSpace(string(data))
		}
	}
	t.Fatalf("container %s has neither %s nor %s; its cgroups:\n%s", containerID, v1, v2, groups)
	return ""
}

// takeHostFile reads and removes a file that a pod wrote to the machine's /tmp.
func takeHostFile(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join("/tmp", name)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
	return string(data)
}

package containerd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/kubelet/bundle"
)

// neededControllers are the cgroup controllers without which pods cannot be
// kept to their limits, by cgroup version.
var neededControllers = map[int][]string{
	1: {"cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "pids"},
	2: {"cpu", "cpuset", "memory", "pids"},
}

// Check reports the features that this machine lacks to run containers with their files below
// dataDir, which need not exist yet.
func Check(dataDir string) []check.Finding {
	return []check.Finding{
		checkRoot(), checkBundle(), checkOverlay(dataDir), checkCgroups(), checkNamespaces(),
		checkSeccomp("/proc/sys/kernel/seccomp/actions_avail", bundle.Features),
	}
}

func checkRoot() check.Finding {
	const name = "root"
	if os.Geteuid() != 0 {
		return check.Failed(name, fmt.Sprintf("running as user %d", os.Geteuid()),
			"run barque as root, for instance with sudo")
	}
	return check.Passed(name, "running as root")
}

func checkBundle() check.Finding {
	const name = "node components"
	if _, err := bundle.Open(); err != nil {
		return check.Failed(name, err.Error(),
			"build barque with `make build`, or run it with --container-runtime-endpoint")
	}
	return check.Passed(name, "runc, containerd shim and CNI plugins are inside this binary")
}

// checkOverlay tries a mount: a kernel may know overlayfs while the data directory's filesystem
// cannot carry it.
func checkOverlay(dataDir string) check.Finding {
	const name = "overlayfs"
	remedy := "load the module (modprobe overlay) and keep the data directory on ext4, xfs or btrfs; without it images are copied for every container"
	if err := tryOverlay(dataDir); err != nil {
		return check.Failed(name, err.Error(), remedy)
	}
	return check.Passed(name, "mounts")
}

func tryOverlay(dataDir string) (err error) {
	parent, err := filepath.Abs(dataDir)
	if err != nil {
		return err
	}
	for {
		if info, err := os.Stat(parent); err == nil && info.IsDir() {
			break
		}
		parent = filepath.Dir(parent)
	}
	dir, err := os.MkdirTemp(parent, ".barque-check-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, sub := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			return err
		}
	}
	merged := filepath.Join(dir, "merged")
	options := fmt.Sprintf("lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work", dir, dir, dir)
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount in %s: %w", parent, err)
	}
	return unix.Unmount(merged, unix.MNT_DETACH)
}

func checkCgroups() check.Finding {
	const name = "cgroup controllers"
	version, have, err := cgroupControllers()
	if err != nil {
		return check.Failed(name, err.Error(), "mount the cgroup filesystem at /sys/fs/cgroup")
	}
	var missing []string
	for _, controller := range neededControllers[version] {
		if !slices.Contains(have, controller) {
			missing = append(missing, controller)
		}
	}
	if len(missing) > 0 {
		return check.Failed(name, fmt.Sprintf("cgroup v%d without %s", version, strings.Join(missing, ", ")),
			"enable the controllers (kernel options such as cgroup_enable=memory, or mount them)")
	}
	return check.Passed(name,
		fmt.Sprintf("cgroup v%d with %s", version, strings.Join(neededControllers[version], ", ")))
}

// cgroupControllers returns the cgroup version in use and its controllers.
func cgroupControllers() (version int, controllers []string, err error) {
	const root = "/sys/fs/cgroup"
	if unified, err := os.ReadFile(filepath.Join(root, "cgroup.controllers")); err == nil {
		return 2, strings.Fields(string(unified)), nil
	}
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup"))
	if err != nil {
		return 0, nil, err
	}
	for _, mount := range mounts {
		controllers = append(controllers, strings.Split(mount.VFSOptions, ",")...)
	}
	if len(mounts) == 0 {
		return 0, nil, fmt.Errorf("no cgroup hierarchy is mounted at %s", root)
	}
	return 1, controllers, nil
}

func checkNamespaces() check.Finding {
	const name = "namespaces"
	var missing []string
	for _, kind := range []string{"cgroup", "ipc", "mnt", "net", "pid", "uts"} {
		if _, err := os.Stat(filepath.Join("/proc/self/ns", kind)); err != nil {
			missing = append(missing, kind)
		}
	}
	if len(missing) > 0 {
		return check.Failed(name, "the kernel lacks "+strings.Join(missing, ", "),
			"use a kernel with CONFIG_NAMESPACES and all kinds of it")
	}
	return check.Passed(name, "cgroup, ipc, mnt, net, pid, uts")
}

// checkSeccomp asks the kernel, and runc: one that was built without seccomp starts no container
// that has a profile. A binary without runc has another finding.
func checkSeccomp(kernel string, features func() ([]byte, error)) check.Finding {
	const name, rebuild = "seccomp",
		"install libseccomp-dev (libseccomp-devel) and build barque again with `make build`"
	if _, err := os.Stat(kernel); err != nil {
		return check.Failed(name, "the kernel has no system call filters", "use a kernel with CONFIG_SECCOMP_FILTER")
	}
	raw, err := features()
	if errors.Is(err, bundle.ErrNotBundled) {
		return check.Passed(name, "the kernel has system call filters; another runtime has to use them")
	}
	var runc struct {
		Linux struct {
			Seccomp struct {
				Enabled bool `json:"enabled"`
			} `json:"seccomp"`
		} `json:"linux"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &runc)
	}
	switch {
	case err != nil:
		return check.Doubtful(name,
			"the kernel has system call filters; runc does not say whether it has: "+err.Error(),
			"look at `runc features` when a node runs")
	case !runc.Linux.Seccomp.Enabled:
		return check.Failed(name, "runc was built without system call filters", rebuild)
	}
	return check.Passed(name, "the kernel and runc have system call filters")
}

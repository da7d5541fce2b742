package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// purgeTimeout bounds how long killed processes may take to be gone.
const purgeTimeout = 20 * time.Second

// Purge ends and removes all that a node's containerd made: containerd, its shims and containers,
// every mount below dataDir, and, when cgroup is not empty, all processes in that cgroup and the
// cgroup itself (a path such as "/barque/node-1", the same in every hierarchy). Images and the rest
// of dataDir stay; removing dataDir is safe afterwards, because nothing is mounted in it any more.
//
// Nothing else is touched, but for the notes that the CNI library keeps of these containers in
// /var/lib/cni/results and the shims' sockets in /run/barque. Purge of a missing or half purged
// directory succeeds.
func Purge(ctx context.Context, dataDir, cgroup string) error {
	l, err := newLayout(dataDir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, purgeTimeout, fmt.Errorf("not done after %v", purgeTimeout))
	defer cancel()
	containers := containerIDs(l)
	if err := killAll(ctx, l, cgroup, containers); err != nil {
		return fmt.Errorf("purge %s: %w", dataDir, err)
	}
	if err := unmountBelow(l.dataDir, func(mount string) bool { return mount == l.dataDir }); err != nil {
		return fmt.Errorf("purge %s: %w", dataDir, err)
	}
	return l.forget(ctx, cgroup)
}

// forget removes the files and cgroups of what has ended.
func (l layout) forget(ctx context.Context, cgroup string) error {
	// The state is last: a second try finds the containers by it.
	err := errors.Join(removeCNIResults(l), os.RemoveAll(l.shimSockets()), os.RemoveAll(l.state()))
	// Empty unless another node of this machine lives.
	_ = os.Remove(filepath.Dir(l.shimSockets()))
	if cgroup != "" {
		err = errors.Join(err, removeCgroup(ctx, cgroup))
	}
	if err != nil {
		return fmt.Errorf("purge %s: %w", l.dataDir, err)
	}
	return nil
}

// killAll kills containerd first, so that nothing new starts, then shims and containers together.
// It repeats this until it finds none: a process may have forked meanwhile.
func killAll(ctx context.Context, l layout, cgroup string, containers map[string]bool) error {
	for {
		mine, err := belonging(l, cgroup, containers)
		if err != nil {
			return err
		}
		if len(mine) == 0 {
			return nil
		}
		slices.SortStableFunc(mine, func(a, b process) int { return rank(a, l) - rank(b, l) })
		for _, p := range mine {
			if err := endProcess(ctx, p, unix.SIGKILL); err != nil {
				return err
			}
		}
	}
}

// belonging are containerd, its shims, and the processes of containers.
func belonging(l layout, cgroup string, containers map[string]bool) ([]process, error) {
	belongs := func(p process) bool {
		return p.isContainerd(l) || p.isShim(l) || p.inCgroup(func(path string) bool {
			inside, err := filepath.Rel(cgroup, path)
			if cgroup != "" && err == nil && filepath.IsLocal(inside) {
				return true
			}
			return slices.ContainsFunc(strings.Split(path, "/"), func(part string) bool { return containers[part] })
		})
	}
	all, err := processes()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(p process) bool { return p.pid == os.Getpid() || !belongs(p) }), nil
}

// rank orders the killing: containerd, shims, containers.
func rank(p process, l layout) int {
	switch {
	case p.isContainerd(l):
		return 0
	case p.isShim(l):
		return 1
	default:
		return 2
	}
}

// containerIDs returns the sandboxes and containers that the state directory
// knows. A container's cgroup is named by its id.
func containerIDs(l layout) map[string]bool {
	ids := map[string]bool{}
	for _, pattern := range []string{"io.containerd.runtime.v2.task/*/*", "runc/*/*"} {
		found, _ := filepath.Glob(filepath.Join(l.state(), pattern)) // the pattern is well-formed
		for _, path := range found {
			if id := filepath.Base(path); len(id) == 64 {
				ids[id] = true
			}
		}
	}
	return ids
}

// removeCNIResults removes the notes about the sandboxes of this data directory.
func removeCNIResults(l layout) error {
	notes, err := cniNotes(l)
	if err != nil {
		return err
	}
	for _, note := range notes {
		if err := os.Remove(note.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	// Empty unless another CNI user of this machine has notes there too.
	_ = os.Remove(cniResults)
	_ = os.Remove(cniDir)
	return nil
}

// removeUnmounted removes a directory after unmounting all file systems below it.
func removeUnmounted(dir string) error {
	if err := unmountBelow(dir, none); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func none(string) bool { return false }

// unmountBelow unmounts everything at and below dir but what keep names, the innermost first, also
// where mounts are stacked.
func unmountBelow(dir string, keep func(mount string) bool) error {
	// The kernel's table has resolved paths.
	resolved, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for {
		mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(resolved))
		if err != nil {
			return fmt.Errorf("list mounts: %w", err)
		}
		// Paths below dir are compared as the caller has them.
		mounts = slices.DeleteFunc(mounts, func(m *mountinfo.Info) bool {
			return keep(dir + strings.TrimPrefix(m.Mountpoint, resolved))
		})
		if len(mounts) == 0 {
			return nil
		}
		// Later mounts lie above and inside earlier ones.
		progress := false
		var failed error
		for _, mount := range slices.Backward(mounts) {
			// Lazily: a mount that a dying process still uses goes when it does.
			err := unix.Unmount(mount.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			switch {
			case err == nil:
				progress = true
			case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
				// Gone with the one above it.
			default:
				failed = errors.Join(failed, fmt.Errorf("unmount %s: %w", mount.Mountpoint, err))
			}
		}
		if !progress {
			return errors.Join(errors.New("mounts stay"), failed)
		}
	}
}

// removeCgroup removes a cgroup and those below it in every hierarchy.
func removeCgroup(ctx context.Context, cgroup string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return fmt.Errorf("list cgroup hierarchies: %w", err)
	}
	for _, mount := range mounts {
		dir := filepath.Join(mount.Mountpoint, cgroup)
		// A killed process may take a moment to leave its cgroup.
		err := waitUntil(ctx, 10*time.Millisecond, func() (bool, error) {
			err := removeCgroupTree(dir)
			if errors.Is(err, unix.EBUSY) {
				return false, nil
			}
			return err == nil, err
		})
		if err != nil {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
		// Parents that are in use stay: rmdir fails for them.
		for parent := filepath.Dir(dir); parent != mount.Mountpoint && unix.Rmdir(parent) == nil; {
			parent = filepath.Dir(parent)
		}
	}
	return nil
}

// removeCgroupTree removes directories only: the files in a cgroup are the kernel's.
func removeCgroupTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeCgroupTree(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

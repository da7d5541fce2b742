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

	"github.com/moby/sys/mountinfo"

	"github.com/barque/barque/internal/remains"
)

// Remains are the things that a node's containerd and its pods leave when Barque has ended: nothing
// stops them. cgroup is that of all pods of the node, or empty. Images and volumes are data, and no
// part of it.
func Remains(dataDir, cgroup string) ([]remains.Kind, error) {
	l, err := newLayout(dataDir)
	if err != nil {
		return nil, err
	}
	return []remains.Kind{{Name: "pods, and containerd",
		Find: func(context.Context) ([]string, error) { return l.remains(cgroup) },
		Remove: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeoutCause(ctx, purgeTimeout, fmt.Errorf("not done after %v", purgeTimeout))
			defer cancel()
			if err := killAll(ctx, l, cgroup, containerIDs(l)); err != nil {
				return err
			}
			for _, dir := range l.mounted() { // other mounts in the data directory are a user's
				if err := unmountBelow(dir, none); err != nil {
					return err
				}
			}
			return l.forget(ctx, cgroup)
		}}}, nil
}

// mounted are the directories in which containerd mounts.
func (l layout) mounted() []string { return []string{l.state(), filepath.Join(l.root(), "tmp")} }

func (l layout) remains(cgroup string) ([]string, error) {
	containers := containerIDs(l)
	running, err := belonging(l, cgroup, containers)
	if err != nil {
		return nil, err
	}
	var found []string
	counted := func(n int, what string) {
		if n > 0 {
			found = append(found, fmt.Sprintf("%d %s", n, what))
		}
	}
	counted(len(containers), "containers")
	counted(len(running), "processes")
	for _, dir := range l.mounted() {
		resolved, err := filepath.EvalSymlinks(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(resolved))
		if err != nil {
			return nil, fmt.Errorf("list mounts: %w", err)
		}
		counted(len(mounts), "mounts below "+dir)
	}
	notes, err := cniNotes(l)
	if err != nil {
		return nil, err
	}
	counted(len(notes), "notes in "+cniResults)
	for _, dir := range []string{l.shimSockets(), l.state()} {
		if _, err := os.Stat(dir); err == nil {
			found = append(found, dir)
		}
	}
	groups, err := cgroupsOf(cgroup)
	return append(found, groups...), err
}

// cgroupsOf are the directories of a cgroup in all hierarchies.
func cgroupsOf(cgroup string) (dirs []string, err error) {
	if cgroup == "" {
		return nil, nil
	}
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("list cgroup hierarchies: %w", err)
	}
	for _, m := range mounts {
		dir := filepath.Join(m.Mountpoint, cgroup)
		_, err := os.Stat(dir)
		if err == nil && !slices.Contains(dirs, dir) && strings.HasPrefix(dir, m.Mountpoint+"/") {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

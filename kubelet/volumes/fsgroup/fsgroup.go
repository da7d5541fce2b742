package fsgroup

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	v1 "k8s.io/api/core/v1"
)

// Of returns the fsGroup of a pod, or nil.
func Of(pod *v1.Pod) *int64 {
	if sc := pod.Spec.SecurityContext; sc != nil {
		return sc.FSGroup
	}
	return nil
}

// Modes that the group of a pod gets on its volumes.
const (
	groupWrites   fs.FileMode = 0o660
	groupReads    fs.FileMode = 0o440
	groupSearches fs.FileMode = 0o110
)

// Apply gives all files of a directory to the pod's fsGroup, which may read them, and write them
// unless the volume is read-only. New files get the group too. Under the policy OnRootMismatch
// nothing is done when the directory itself has the group already: it is changed last, so that an
// interrupted walk begins again. Other pods may write to the volume meanwhile: no symbolic link
// leads the walk out of it.
func Apply(ctx context.Context, pod *v1.Pod, dir string, readOnly bool) error {
	group := Of(pod)
	if group == nil {
		return nil
	}
	mask := groupWrites
	if readOnly {
		mask = groupReads
	}
	policy := pod.Spec.SecurityContext.FSGroupChangePolicy
	if policy != nil && *policy == v1.FSGroupChangeOnRootMismatch {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if hasGroup(info, *group, mask) {
			return nil
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := giveBelow(ctx, root, ".", int(*group), mask); err != nil {
		return fmt.Errorf("apply fsGroup %d to the volume: %w", *group, err)
	}
	return nil
}

// hasGroup reports whether a directory is as Apply leaves it.
func hasGroup(info fs.FileInfo, group int64, mask fs.FileMode) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	want := mask | groupSearches
	return ok && int64(stat.Gid) == group && info.Mode()&fs.ModeSetgid != 0 && info.Mode().Perm()&want == want
}

// giveBelow changes the content of a directory before the directory itself.
func giveBelow(ctx context.Context, root *os.Root, at string, group int, mask fs.FileMode) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	dir, err := root.Open(at)
	if err != nil {
		return err
	}
	entries, err := dir.ReadDir(-1)
	dir.Close()
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := e.Name()
		if at != "." {
			path = at + "/" + path
		}
		switch {
		case e.IsDir():
			err = giveBelow(ctx, root, path, group, mask)
		default:
			err = give(root, path, group, mask)
		}
		if err != nil && !os.IsNotExist(err) { // writers of the volume may remove files
			return err
		}
	}
	return give(root, at, group, mask)
}

func give(root *os.Root, path string, group int, mask fs.FileMode) error {
	info, err := root.Lstat(path)
	if err != nil {
		return err
	}
	if err := root.Lchown(path, -1, group); err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil
	}
	mode := info.Mode()&(fs.ModePerm|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) | mask
	if info.IsDir() {
		mode |= fs.ModeSetgid | groupSearches
	}
	return root.Chmod(path, mode)
}

package hostmount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Root is the root directory of a new file system. Its users may change it later.
type Root struct {
	Mode  fs.FileMode
	Group *int64 // nil for that of this process
}

// options are those of the mount, which is never seen with others.
func (r Root) options() string {
	mode := uint32(r.Mode.Perm())
	if r.Mode&fs.ModeSetgid != 0 {
		mode |= unix.S_ISGID
	}
	options := fmt.Sprintf("mode=%o", mode)
	if r.Group != nil {
		options += fmt.Sprintf(",gid=%d", *r.Group)
	}
	return options
}

// Bind has the options of a bind mount.
type Bind struct {
	ReadOnly bool
	// NoFollow refuses a source whose last element is a symbolic link.
	NoFollow bool
}

// Mounter mounts by the kernel of this machine.
type Mounter struct{}

// Tmpfs implements Mounts.
func (Mounter) Tmpfs(dir string, size int64, root Root) error {
	mounted, err := isMountpoint(dir)
	if err != nil || mounted {
		return err
	}
	options := root.options()
	if size > 0 {
		options += fmt.Sprintf(",size=%d", size)
	}
	// Secrets must not reach a disk by swap. Kernels before 6.4 do not know the option.
	err = unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options+",noswap")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
	}
	if err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
	}
	return nil
}

// HugePages implements Mounts.
func (Mounter) HugePages(dir string, page int64, root Root) error {
	mounted, err := isMountpoint(dir)
	if err != nil || mounted {
		return err
	}
	if err := unix.Mount("nodev", dir, "hugetlbfs", 0,
		fmt.Sprintf("pagesize=%d,%s", page, root.options())); err != nil {
		return fmt.Errorf("mount huge pages of %d bytes on %s: %w", page, dir, err)
	}
	return os.Chmod(dir, root.Mode) // hugetlbfs has no option for the bit of the group
}

// Bind implements Mounts.
func (Mounter) Bind(source, target string, how Bind) error {
	flags := unix.O_PATH | unix.O_CLOEXEC
	if how.NoFollow {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := unix.Open(source, flags, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: source, Err: err}
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFLNK {
		return fmt.Errorf("%s is a symbolic link", source)
	}
	if err := bindPoint(target, stat.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
		return err
	}
	mounted, err := isMountpoint(target)
	if err != nil || mounted {
		return err
	}
	// A read-only mount is prepared detached, so that a crash leaves no writable one.
	tree, err := unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	if err != nil {
		return fmt.Errorf("clone the mount of %s: %w", source, err)
	}
	defer unix.Close(tree)
	if how.ReadOnly {
		attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
			return fmt.Errorf("make the mount of %s read-only: %w", source, err)
		}
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("bind %s on %s: %w", source, target, err)
	}
	return nil
}

// Mounted implements Mounts. It asks the kernel about the one path: the table of mounts grows with
// the pods of the node, and each pod looks up each of its volumes.
func (Mounter) Mounted(dir string) (bool, error) {
	var s unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, 0, &s)
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return false, nil
	case err == nil && s.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0:
		return s.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
	}
	// Linux before 5.8, or a file system that does not answer.
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	at := filepath.Join(parent, filepath.Base(dir))
	points, err := mountpoints(func(point string) bool { return point == at })
	return len(points) > 0, err
}

// Release implements Mounts.
func (Mounter) Release(dir string) error {
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	at := filepath.Join(parent, filepath.Base(dir))
	for {
		points, err := mountpoints(func(point string) bool { return point == at || strings.HasPrefix(point, at+"/") })
		if err != nil || len(points) == 0 {
			return err
		}
		if err := isolate(points); err != nil {
			return err
		}
		newest := points[len(points)-1]
		if err := unix.Unmount(newest, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", newest, err)
		}
	}
}

// isolate keeps unmounts below mount points from reaching other places. A bound mount shares the
// mounts below it with its source: unmounted here, they would be unmounted there, too.
func isolate(points []string) error {
	for _, point := range points {
		// Others are not touched: the lookup would wait for a server that does not answer.
		if !slices.ContainsFunc(points, func(p string) bool { return strings.HasPrefix(p, point+"/") }) {
			continue
		}
		if err := unix.Mount("", point, "", unix.MS_PRIVATE, ""); err != nil && !errors.Is(err, unix.EINVAL) &&
			!errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("separate the mounts below %s from those of its source: %w", point, err)
		}
	}
	return nil
}

// isMountpoint reports whether dir is on another file system than its parent, or bound there.
func isMountpoint(dir string) (bool, error) {
	var self, parent unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID,
		&self); err != nil {
		return false, &os.PathError{Op: "statx", Path: dir, Err: err}
	}
	if err := unix.Statx(unix.AT_FDCWD, filepath.Dir(dir), 0, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID,
		&parent); err != nil {
		return false, &os.PathError{Op: "statx", Path: filepath.Dir(dir), Err: err}
	}
	return self.Mnt_id != parent.Mnt_id, nil
}

// BindBelow implements Mounts.
func (Mounter) BindBelow(root, path, target string) error {
	fd, err := openBelow(root, path)
	if errors.Is(err, unix.EXDEV) {
		return fmt.Errorf("%q leads out of the volume, by a symbolic link", path)
	}
	if err != nil {
		return fmt.Errorf("open %q inside the volume: %w", path, err)
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	// The opened file is bound, even if its name means another one by now.
	if err := bindPoint(target, stat.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
		return err
	}
	mounted, err := isMountpoint(target)
	if err != nil {
		return err
	}
	if mounted {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount the former subPath at %s: %w", target, err)
		}
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %q on %s: %w", path, target, err)
	}
	return nil
}

func openBelow(root, path string) (int, error) {
	rootFD, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(rootFD)
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(rootFD, path, how)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	// os.Root makes the directories without leaving the volume.
	r, err := os.OpenRoot(root)
	if err != nil {
		return -1, err
	}
	defer r.Close()
	fresh, err := missing(r, path)
	if err != nil {
		return -1, err
	}
	if err := r.MkdirAll(path, 0o750); err != nil {
		return -1, err
	}
	if err := inheritOwner(r, fresh); err != nil {
		return -1, err
	}
	return unix.Openat2(rootFD, path, how)
}

// missing returns the directories on the way to a path that are not there, the outermost first.
func missing(r *os.Root, path string) (dirs []string, err error) {
	at := ""
	for part := range strings.SplitSeq(filepath.Clean(path), "/") {
		at = filepath.Join(at, part)
		switch _, err := r.Stat(at); {
		case errors.Is(err, os.ErrNotExist):
			dirs = append(dirs, at)
		case err != nil:
			return nil, err
		}
	}
	return dirs, nil
}

// inheritOwner gives new directories the mode and the owner of the volume itself, so that its
// writers may write to them. Directories that a user has made keep theirs.
func inheritOwner(r *os.Root, fresh []string) error {
	info, err := r.Stat(".")
	if err != nil {
		return err
	}
	for _, dir := range fresh {
		if err := r.Chmod(dir, info.Mode()); err != nil {
			return err
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			if err := r.Chown(dir, int(stat.Uid), int(stat.Gid)); err != nil {
				return err
			}
		}
	}
	return nil
}

// bindPoint makes the directory or empty file for a bind mount.
func bindPoint(target string, dir bool) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	if dir {
		if err := os.Mkdir(target, 0o750); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		return nil
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o640)
	if err != nil {
		return err
	}
	return f.Close()
}

// Unmount implements Mounts.
func (Mounter) Unmount(dir string) error {
	points, err := mountpointsBelow(dir)
	if err != nil {
		return err
	}
	if err := isolate(points); err != nil {
		return err
	}
	var errs []error
	for i := len(points) - 1; i >= 0; i-- { // the newest first
		if err := unix.Unmount(points[i], unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) &&
			!errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", points[i], err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	// Removing the directory would delete the data of a mount that is still there.
	if points, err = mountpointsBelow(dir); err == nil && len(points) > 0 {
		err = fmt.Errorf("%s is still mounted", points[0])
	}
	return err
}

func mountpointsBelow(dir string) ([]string, error) {
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return mountpoints(func(point string) bool { return point == real || strings.HasPrefix(point, real+"/") })
}

// mountpoints lists the wanted mount points, the oldest first.
func mountpoints(wanted func(string) bool) ([]string, error) {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var points []string
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if point := unescape.Replace(fields[4]); wanted(point) {
			points = append(points, point)
		}
	}
	return points, nil
}

// unescape decodes the kernel's white space in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

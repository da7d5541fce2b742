package volumes

import "github.com/barque/barque/kubelet/volumes/hostmount"

// Mounts are the mount operations of the host. Tests that are not root have a fake.
type Mounts interface {
	// Tmpfs mounts a tmpfs on dir, of at most size bytes when size is not 0. It does nothing when
	// one is mounted there.
	Tmpfs(dir string, size int64, root hostmount.Root) error
	// HugePages mounts a file system of huge pages of a size on dir. It does nothing when one is
	// mounted there.
	HugePages(dir string, page int64, root hostmount.Root) error
	// Bind shows source at target, which it makes: a directory for a directory, else a file. It
	// does nothing when something is mounted there.
	Bind(source, target string, how hostmount.Bind) error
	// Mounted reports whether something is mounted on dir. It asks no file system, so that none can
	// keep it waiting.
	Mounted(dir string) (bool, error)
	// BindBelow shows root/path at target. The path is resolved inside root: no symlink leads out
	// of it. A missing path becomes a directory.
	BindBelow(root, path, target string) error
	// Unmount removes the mounts on dir and below, also those in use. A source that was bound there
	// keeps its own mounts.
	Unmount(dir string) error
	// Release removes the mounts on dir and below, and fails when they are in use: written data is
	// on the device when it returns. A source that was bound to dir keeps its own mounts.
	Release(dir string) error
}

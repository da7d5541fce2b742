// Package netname makes and removes named network namespaces (ip-netns(8)): files below
// /run/netns, each with a namespace mounted on it. ip makes the same ones beside it.
package netname

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/osthread"
)

// dir has the names.
const dir = "/run/netns"

// Make makes a network namespace with a name, unless it exists.
func Make(name string) error {
	if err := prepare(); err != nil {
		return err
	}
	path := filepath.Join(dir, name)
	if existing, err := netns.GetFromName(name); err == nil {
		existing.Close()
		var stat unix.Statfs_t
		if unix.Statfs(path, &stat) == nil && stat.Type == unix.NSFS_MAGIC {
			return nil
		}
		// Only the file was made: its maker did not finish.
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return osthread.Do(func() error { // it ends in the new namespace
		ns, err := netns.NewNamed(name)
		if err == nil {
			ns.Close()
		}
		return err
	})
}

// Remove removes the name. The namespace ends with its last process. A missing name is no error.
func Remove(name string) error {
	if err := netns.DeleteNamed(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove network namespace %s: %w", name, err)
	}
	return nil
}

// prepare makes the directory a shared mount of its own, as ip does before it makes the first
// namespace. Otherwise ip would do it later, over the namespaces that are mounted there by then. An
// unmount would then reach the copies on top, and the files below them would stay busy. The same
// would happen to existing names of other programs, so the directory stays as it is until they are
// gone.
func prepare() error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer lock.Close() // unlocks
	// ip holds this lock meanwhile, too: one of two would mount over the other.
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", dir, err)
	}
	share := func() error {
		if err := unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("share the mount %s: %w", dir, err)
		}
		return nil
	}
	if err := share(); !errors.Is(err, unix.EINVAL) { // EINVAL: nothing is mounted there
		return err
	}
	names, err := os.ReadDir(dir)
	if err != nil || len(names) > 0 {
		return err
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s on itself: %w", dir, err)
	}
	return share()
}

package csidriver

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Mounts shows directories by bind mounts of this machine. It takes root.
type Mounts struct{}

// Bind implements Host. It does nothing when something is mounted at target.
func (Mounts) Bind(source, target string, readOnly bool) error {
	if err := os.MkdirAll(target, 0o750); err != nil {
		return err
	}
	var at, above unix.Stat_t
	if err := unix.Stat(target, &at); err != nil {
		return err
	}
	if err := unix.Stat(source, &above); err != nil {
		return err
	}
	if at.Dev == above.Dev && at.Ino == above.Ino {
		return nil // the same directory: it is bound
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s on %s: %w", source, target, err)
	}
	if !readOnly {
		return nil
	}
	return unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// Unbind implements Host.
func (Mounts) Unbind(target string) error {
	for {
		err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil // nothing is mounted there
		case err != nil:
			return fmt.Errorf("unmount %s: %w", target, err)
		}
	}
}

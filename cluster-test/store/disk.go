package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// disk is a file system of a member's own, in an image file: it can be full, and it can lose power.
// All methods run on the keeper's thread, where it is mounted.
type disk struct{ image, mount string }

// DisksPossible is nil where members can have a disk of their own, and otherwise says what is missing.
func DisksPossible() error {
	if os.Geteuid() != 0 {
		return errors.New("a disk of a member's own takes root")
	}
	for _, program := range []string{"mkfs.ext4", "mount"} {
		if _, err := exec.LookPath(program); err != nil {
			return err
		}
	}
	f, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	k, err := newKeeper(true)
	if err == nil {
		k.stop()
	}
	return errors.Join(err, f.Close())
}

func newDisk(dir string, megabytes int) (*disk, error) {
	d := &disk{image: filepath.Join(dir, "disk.img"), mount: filepath.Join(dir, "disk")}
	if err := os.Mkdir(d.mount, 0o700); err != nil {
		return nil, err
	}
	f, err := os.Create(d.image)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Truncate(int64(megabytes)<<20), f.Close()); err != nil {
		return nil, err
	}
	if err := command("mkfs.ext4", "-q", "-F", "-m", "0", d.image); err != nil {
		return nil, err
	}
	return d, d.attach()
}

func command(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// attach mounts the disk. The loop device goes with the mount.
func (d *disk) attach() error { return command("mount", "-o", "loop", d.image, d.mount) }

func (d *disk) detach() error { return unix.Unmount(d.mount, 0) }

// ioctlShutdown is EXT4_IOC_SHUTDOWN, and shutdownNoFlush its way of a power failure: nothing that is
// only in memory, neither data nor journal, gets to the device any more.
const (
	ioctlShutdown   = 0x8004587d
	shutdownNoFlush = 2
)

// cutPower makes all that was not synced be lost. The disk fails until it is attached again.
func (d *disk) cutPower() error {
	f, err := os.Open(d.mount)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), ioctlShutdown, shutdownNoFlush); err != nil {
		return fmt.Errorf("shut the file system %s down: %w", d.mount, err)
	}
	return nil
}

const ballast = "ballast"

// fill leaves no byte free.
func (d *disk) fill() error {
	f, err := os.OpenFile(filepath.Join(d.mount, ballast), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	zero := make([]byte, 1<<20)
	for size := len(zero); size > 0; {
		_, err := f.Write(zero[:size])
		switch {
		case errors.Is(err, unix.ENOSPC):
			size /= 2
		case err != nil:
			return err
		}
	}
	if _, err := f.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	return f.Sync()
}

// free takes back what fill took.
func (d *disk) free() error { return os.Remove(filepath.Join(d.mount, ballast)) }

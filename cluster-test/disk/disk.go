// Package disk makes file systems of a size of their own, in image files, that can be broken as
// disks break: full, hung, slow, or without power. Loop devices and root are needed; see Possible.
//
// A disk belongs to the process that made it. That process detaches its mounts. In a mount
// namespace of its own they go with the namespace.
package disk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/await"
)

// Disk is an ext4 file system in an image file.
type Disk struct{ Image, Mount string }

// Possible is nil where disks can be made, and otherwise an error with the reason.
func Possible() error {
	if os.Geteuid() != 0 {
		return errors.New("a disk of its own takes root")
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
	return f.Close()
}

// New makes an image of a size, with an empty file system, and attaches it to the directory, which
// it makes too.
func New(image, mount string, megabytes int) (*Disk, error) {
	d := &Disk{Image: image, Mount: mount}
	if err := os.MkdirAll(mount, 0o700); err != nil {
		return nil, err
	}
	f, err := os.Create(image)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Truncate(int64(megabytes)<<20), f.Close()); err != nil {
		return nil, err
	}
	if err := command("mkfs.ext4", "-q", "-F", "-m", "0", image); err != nil {
		return nil, err
	}
	return d, d.Attach()
}

func command(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// Attach mounts the disk. The loop device goes with the mount, and only when the file system is not
// used any more: two at once would destroy it, so Attach waits for that.
func (d *Disk) Attach() error {
	for end := time.Now().Add(await.Hang); ; {
		device, err := d.device()
		if err != nil {
			return err
		}
		if device == "" {
			return command("mount", "-o", "loop", d.Image, d.Mount)
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s is still in use through %s: %s", d.Image, device, holders(device))
		}
		<-time.After(20 * time.Millisecond) // brief: the interval of a poll
	}
}

// device returns the loop device of the image, if there is one.
func (d *Disk) device() (string, error) {
	image, err := filepath.EvalSymlinks(d.Image)
	if err != nil {
		return "", err
	}
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return "", err
	}
	for _, path := range backing {
		// A device that goes meanwhile does not count.
		if data, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(data)) == image {
			return filepath.Base(filepath.Dir(filepath.Dir(path))), nil
		}
	}
	return "", nil
}

// Detach unmounts the disk, which must not be in use.
func (d *Disk) Detach() error {
	if err := unix.Unmount(d.Mount, 0); err != nil {
		return fmt.Errorf("unmount %s: %w", d.Mount, err)
	}
	return nil
}

// Requests to a file system.
const (
	// shutdown is EXT4_IOC_SHUTDOWN, and noFlush its way of a power failure: nothing that is only
	// in memory, neither data nor journal, gets to the device any more.
	shutdown = 0x8004587d
	noFlush  = 2
	freeze   = 0xc0045877 // FIFREEZE
	thaw     = 0xc0045878 // FITHAW
)

// ErrDetached is returned when something is asked of a disk that is not attached. It would be asked
// of whatever lies below the directory then, which may be the machine's own file system.
var ErrDetached = errors.New("the disk is not attached")

// open opens the root of the file system, after it has seen that it is that of the image. The
// caller closes it.
func (d *Disk) open() (*os.File, error) {
	f, err := os.Open(d.Mount)
	if err != nil {
		return nil, err
	}
	own, err := d.isOwn(f)
	if err == nil && !own {
		err = fmt.Errorf("%w: %s at %s", ErrDetached, d.Image, d.Mount)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// isOwn reports whether a file is on this disk, by the numbers of the device.
func (d *Disk) isOwn(f *os.File) (bool, error) {
	device, err := d.device()
	if err != nil || device == "" {
		return false, err
	}
	var is, want unix.Stat_t
	if err := errors.Join(unix.Fstat(int(f.Fd()), &is), unix.Stat(filepath.Join("/dev", device), &want)); err != nil {
		return false, err
	}
	return is.Dev == want.Rdev, nil
}

func (d *Disk) ask(request uint, argument int) error {
	f, err := d.open()
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.IoctlSetPointerInt(int(f.Fd()), request, argument)
}

// CutPower makes all that was not synced be lost. The disk fails until it is detached and attached
// again.
func (d *Disk) CutPower() error {
	if err := d.ask(shutdown, noFlush); err != nil {
		return fmt.Errorf("shut the file system %s down: %w", d.Mount, err)
	}
	return nil
}

// CommitEvery sets for how long the kernel keeps unsynced data to itself, until the disk is
// detached: it is five seconds otherwise.
func (d *Disk) CommitEvery(seconds int) error {
	f, err := d.open()
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Mount("", d.Mount, "", unix.MS_REMOUNT, fmt.Sprintf("commit=%d", seconds)); err != nil {
		return fmt.Errorf("let %s keep what is not synced for %d seconds: %w", d.Mount, seconds, err)
	}
	return nil
}

// Frozen makes all writes to the disks hang while f runs. A writing process cannot even be killed
// meanwhile. They are thawed when it returns, also when f panics; when the process ends meanwhile,
// the cleanup after it must Thaw them.
func Frozen(f func(), disks ...*Disk) (err error) {
	for _, d := range disks {
		if err := d.ask(freeze, 0); err != nil {
			return fmt.Errorf("freeze the file system %s: %w", d.Mount, err)
		}
		defer func() { err = errors.Join(err, d.Thaw()) }()
	}
	f()
	return nil
}

// Thaw lets writes go on. A disk that is not frozen stays as it is, and one that is not attached is
// not frozen.
func (d *Disk) Thaw() error {
	if err := d.ask(thaw, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, ErrDetached) {
		return fmt.Errorf("thaw the file system %s: %w", d.Mount, err)
	}
	return nil
}

const ballast = "ballast"

// Fill leaves no byte free.
func (d *Disk) Fill() error {
	root, err := d.open()
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := os.OpenFile(filepath.Join(d.Mount, ballast), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	// Blocks that are only reserved are as full as those that are written, and much faster.
	var end int64
	for size := int64(64 << 20); size >= 4096; {
		switch err := unix.Fallocate(int(f.Fd()), 0, end, size); {
		case err == nil:
			end += size
		case errors.Is(err, unix.ENOSPC):
			size /= 2
		case !errors.Is(err, unix.EINTR):
			return fmt.Errorf("fill %s: %w", d.Mount, err)
		}
	}
	for zero := make([]byte, 4096); len(zero) > 0; {
		switch _, err := f.Write(zero); {
		case errors.Is(err, unix.ENOSPC):
			zero = zero[:len(zero)/2]
		case err != nil:
			return err
		}
	}
	return f.Sync()
}

// Free removes the file of Fill.
func (d *Disk) Free() error {
	if err := os.Remove(filepath.Join(d.Mount, ballast)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

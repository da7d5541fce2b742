// Package mountspace separates a new mount namespace from the machine's mounts.
//
// A new mount namespace is a copy: it has all the machine's mounts of that moment once more, for
// its whole life. Unless the machine's mounts are shared, an unmount outside does not remove the
// copy. Another program's disk image stays busy, and cannot be attached again. A network namespace
// stays, with its interfaces, though its name was deleted. The maker of a mount namespace calls Own
// first.
//
// It is for tests, which have their own namespaces beside each other. In the product only the
// container runtime makes one, and that leaves the machine's mounts behind by pivoting into the
// container's root.
package mountspace

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Own is called on a thread with a new mount namespace. After it, mounts in the namespace are
// invisible outside.
//
// Where the machine's mounts are shared, an unmount outside removes the copy here too. Where they
// are not, Own removes the copies that other programs may want to unmount: loop devices, overlays,
// and names of network namespaces. It keeps the given paths, and those of the process: its root,
// program and directory, and those of temporary files and programs.
//
// A mount that lies hidden below another one cannot be reached, and stays.
func Own(keep ...string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("take the mounts out of those of the machine: %w", err)
	}
	// Of this thread: the process may have others, in another namespace.
	data, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	mounts, err := parse(data)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(mounts, func(m mount) bool { return m.shared }); i >= 0 {
		return fmt.Errorf("%s is still shared: what is unmounted there would be gone outside, too", mounts[i].point)
	}
	kept := resolved(append(keep, ownPaths()...))
	for _, m := range slices.Backward(mounts) { // the newest first
		if !m.others() || m.above(kept) {
			continue
		}
		if err := m.detach(); err != nil {
			return err
		}
	}
	return nil
}

// ownPaths are the paths that a process needs.
func ownPaths() []string {
	paths := append(filepath.SplitList(os.Getenv("PATH")), os.TempDir())
	for _, f := range []func() (string, error){os.Executable, os.Getwd} {
		if path, err := f(); err == nil { // otherwise it was deleted, and is not to be found by its path
			paths = append(paths, path)
		}
	}
	return paths
}

// resolved returns the paths without symbolic links. A dangling link keeps nothing.
func resolved(paths []string) (real []string) {
	for _, path := range paths {
		if path, err := filepath.EvalSymlinks(path); err == nil {
			real = append(real, path)
		}
	}
	return real
}

// mount is a line of mountinfo (proc_pid_mountinfo(5)).
type mount struct {
	id     uint64
	major  int // of the device
	point  string
	shared bool
	kind   string // of the file system
}

// loopMajor is the major number of all loop devices.
const loopMajor = 7

// others reports whether another program may want to unmount it.
func (m *mount) others() bool {
	return m.major == loopMajor || m.kind == "overlay" || m.kind == "nsfs"
}

// above reports whether one of the paths leads through it.
func (m *mount) above(paths []string) bool {
	return m.point == "/" || slices.ContainsFunc(paths, func(path string) bool {
		return path == m.point || strings.HasPrefix(path, m.point+"/")
	})
}

// detach unmounts it and all mounts below it, unless another mount covers it.
func (m *mount) detach() error {
	var at unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, m.point, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &at)
	if err != nil || at.Mnt_id != m.id {
		return nil
	}
	// It was unmounted outside meanwhile.
	err = unix.Unmount(m.point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("give up %s, which is others': %w", m.point, err)
	}
	return nil
}

// parse reads mountinfo.
func parse(data []byte) (mounts []mount, err error) {
	for line := range bytes.Lines(data) {
		words := strings.Fields(string(line))
		end := slices.Index(words, "-") // after it come the kind of the file system and its source
		if end < 6 || end+1 >= len(words) {
			return nil, fmt.Errorf("a mount is told of as %q", line)
		}
		m := mount{point: unescape.Replace(words[4]), kind: words[end+1]}
		m.shared = slices.ContainsFunc(words[6:end], func(tag string) bool { return strings.HasPrefix(tag, "shared:") })
		major, _, _ := strings.Cut(words[2], ":")
		m.id, err = strconv.ParseUint(words[0], 10, 64)
		if err == nil {
			m.major, err = strconv.Atoi(major)
		}
		if err != nil {
			return nil, fmt.Errorf("a mount is told of as %q: %w", line, err)
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}

// unescape undoes how the kernel writes white space.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

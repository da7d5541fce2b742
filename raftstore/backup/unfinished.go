package backup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sys/unix"
)

// A backup in progress has a temporary name, and its writer locks the file until it is renamed. The
// lock ends with the process. A file without a lock that was not written to for a while is a
// leftover. The next backup, or the removal of old ones, removes it. The lock alone is not enough:
// several servers may share one directory, on a file system without locks, or with locks per
// machine only.
const unready = ".unfinished"

// unfinished matches the names from begin. os.CreateTemp adds the number.
var unfinished = regexp.MustCompile(`^.+-[0-9]+\.unfinished$`)

// abandoned is how long a file without a lock must be unchanged. A writer's longest pause is the
// reading back of the file.
const abandoned = 15 * time.Minute

// begin makes the file that is to become a backup, closed to others.
func begin(dir, working string) (*os.File, error) {
	for {
		f, err := os.CreateTemp(dir, working+"-*"+unready)
		if err != nil {
			return nil, err
		}
		switch mine, err := claim(f); {
		case err != nil:
			return nil, errors.Join(err, f.Close(), os.Remove(f.Name()))
		case mine:
			return f, nil
		}
		f.Close() // another process has swept it
	}
}

// claim locks a file that was just made. It returns whether the file is still there.
func claim(f *os.File) (bool, error) {
	switch err := lock(f); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return false, nil
	case err != nil && !lockless(err):
		return false, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return sameFile(f)
}

// sameFile reports whether a file still has its name.
func sameFile(f *os.File) (bool, error) {
	open, err := f.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Lstat(f.Name())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(open, named), err
}

func lock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// lockless reports whether a file system has no locks.
func lockless(err error) bool {
	return errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENOLCK) || errors.Is(err, unix.ENOSYS) ||
		errors.Is(err, unix.EINVAL)
}

// sweep removes leftovers of dead writers.
func sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if unfinished.MatchString(e.Name()) && e.Type().IsRegular() {
			err = errors.Join(err, sweepOne(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

func sweepOne(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)                               // some file systems lock no other
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) { // it has its place by now, or another owner
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	left, err := leftBehind(f)
	if err != nil || !left {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// leftBehind reports whether a file is a leftover. The directory may be any, with files of others
// whose names look like ours. An empty file may be ours: a backup begins in memory.
func leftBehind(f *os.File) (bool, error) {
	info, err := f.Stat()
	if err != nil || time.Since(info.ModTime()) < abandoned {
		return false, err
	}
	begins := make([]byte, len(magic))
	n, err := io.ReadFull(f, begins)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false, err
	}
	if !bytes.Equal(begins[:n], []byte(magic)[:n]) {
		return false, nil
	}
	switch err := lock(f); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return false, nil
	case err != nil && !lockless(err):
		return false, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return sameFile(f)
}

// renames are the available calls for renaming a file. File systems differ in their support.
type renames struct {
	exclusive func(from, to string) error // fails if the name exists
	link      func(from, to string) error // fails if the name exists
	replace   func(from, to string) error
	remove    func(path string) error
}

// renameNew renames a file, and fails with fs.ErrExist if the name exists.
func renameNew(from, to string) error {
	return renames{exclusive: renameExclusive, link: os.Link, replace: os.Rename, remove: os.Remove}.renameNew(from, to)
}

func renameExclusive(from, to string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

func (r renames) renameNew(from, to string) error {
	err := r.exclusive(from, to)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	// As on NFS.
	if err = r.link(from, to); err == nil {
		_ = r.remove(from) // the backup is in place; a second name is removed as a leftover
		return nil
	}
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.ENOTSUP) {
		return err
	}
	// Without hard links, as on SMB: the name is taken first, for a moment by a file that is empty.
	taken, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err = taken.Close(); err == nil {
		err = r.replace(from, to)
	}
	if err != nil {
		return errors.Join(err, r.remove(to))
	}
	return nil
}

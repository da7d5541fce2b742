// Package atomicfile replaces files so that neither a reader nor a crash ever sees half of one.
package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Write replaces a file atomically. A reader, or a crash at any moment, sees the old or the new
// content, never a part, and never more permissions than mode. Missing parent directories are made,
// closed to others. After an error the new content may or may not be in place; nothing else is left
// behind.
func Write(path string, data []byte, mode os.FileMode) error {
	return WriteFrom(path, mode, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// WriteFrom is Write for content that should not be in memory as a whole: fill writes it.
func WriteFrom(path string, mode os.FileMode, fill func(io.Writer) error) (err error) {
	dir := filepath.Dir(path)
	if err := MakeDir(dir); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, temporary(path)) // CreateTemp makes it 0600
	if err != nil {
		return err
	}
	placed := false
	defer func() {
		if err != nil && !placed {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if err = fill(f); err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	placed = true
	return SyncDir(dir)
}

// Remove removes a file, if it exists, so that it does not come back after a loss of power.
func Remove(path string) error {
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// MakeDir makes a directory and its missing parents, closed to others. Directories that it makes
// survive a loss of power. An existing directory may not: another process may have made it just
// now.
func MakeDir(path string) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return &os.PathError{Op: "mkdir", Path: path, Err: syscall.ENOTDIR}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	above := filepath.Dir(path)
	if err := MakeDir(above); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return SyncDir(above)
}

// temporary is the pattern of the names of unfinished files.
func temporary(path string) string { return "." + filepath.Base(path) + ".*" }

// Sweep removes the temporary files of Writes of the path that were killed. No process may write
// the path meanwhile.
func Sweep(path string) error {
	dir := filepath.Dir(path) // whose name is no pattern
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	prefix := strings.TrimSuffix(temporary(path), "*")
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// SweepDir is Sweep for all files in a directory, also for paths that are not used any more: a
// leftover may contain a secret. No process may write a file there meanwhile.
func SweepDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if isTemporary(e.Name()) && e.Type().IsRegular() {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// isTemporary reports whether a name has the pattern of temporary, with the number of
// os.CreateTemp.
func isTemporary(name string) bool {
	end := strings.LastIndexByte(name, '.')
	return end > 1 && name[0] == '.' && end < len(name)-1 && strings.Trim(name[end+1:], "0123456789") == ""
}

// SyncDir makes renames, creations and removals in the directory survive a loss of power.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

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

// Write replaces a file so that a reader, or a crash at any moment, sees the old content or the new
// one, never a part, and never with more permissions than mode. Missing parent directories are
// made, closed to others. When it fails, the new content may or may not be in place; nothing else
// is left behind.
func Write(path string, data []byte, mode os.FileMode) error {
	return WriteFrom(path, mode, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// WriteFrom is Write for what is better not held in memory as a whole: fill writes the content.
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

// Remove removes a file, if it is there, so that it does not come back after a loss of power.
func Remove(path string) error {
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// MakeDir makes a directory and the missing ones above it, closed to others, so that those which it
// makes are still there after a loss of power. Of those which it finds it knows nothing: one that
// was made just before a crash may go yet, as may one that another process is making.
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

// temporary is the pattern of the names of files that are not in their place yet.
func temporary(path string) string { return "." + filepath.Base(path) + ".*" }

// Sweep removes what Writes of the path have left that were killed before they had finished.
// Nobody may write the path meanwhile.
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

// SweepDir is Sweep for all files in a directory, also for those of which nobody knows any more:
// what is left of one may be a secret. Nobody may write a file there meanwhile.
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

// isTemporary tells whether a name is of the pattern of temporary, with the number that
// os.CreateTemp gives it.
func isTemporary(name string) bool {
	end := strings.LastIndexByte(name, '.')
	return end > 1 && name[0] == '.' && end < len(name)-1 && strings.Trim(name[end+1:], "0123456789") == ""
}

// SyncDir makes what was renamed, made or removed in the directory survive a power loss.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

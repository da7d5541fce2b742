// Package atomicfile replaces files so that neither a reader nor a crash ever sees half of one.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
)

// Write replaces a file so that a reader, or a crash at any moment, sees the old content or the
// new one, never a part, and never with more permissions than mode. Missing parent directories are
// made, closed to others.
func Write(path string, data []byte, mode os.FileMode) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, temporary(path)) // CreateTemp makes it 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if _, err = f.Write(data); err == nil {
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
	return syncDir(dir)
}

// temporary is the pattern of the names of files that are not in their place yet.
func temporary(path string) string { return "." + filepath.Base(path) + ".*" }

// Sweep removes what Writes of the path have left that were killed before they had finished.
// Nobody may write the path meanwhile.
func Sweep(path string) error {
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), temporary(path)))
	for _, file := range left {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}

// syncDir makes a rename in the directory survive a power loss.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

package atomicdir

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// File is one file of a directory.
type File struct {
	Data []byte
	Mode fs.FileMode
	// Owner is the user that owns the file, or nil for root.
	Owner *int64
}

// Payload maps paths inside a directory to files.
type Payload map[string]File

// Names inside a volume that readers skip. All a volume shows are symlinks through dataLink, so
// that one rename changes all files at once.
const (
	dataLink = "..data"
	newLink  = "..data_new"
	dirName  = "..version_"
)

// Replace makes dir show exactly payload. A reader sees the old files or the new ones, never a mix;
// when nothing differs nothing is touched. A crash at any point leaves the old or the new version,
// and the next call removes the remains.
//
//	dir/config     -> ..data/config
//	dir/..data     -> ..version_123
//	dir/..version_123/config
func Replace(dir string, payload Payload, group *int64) error {
	for path := range payload {
		if !filepath.IsLocal(path) || strings.HasPrefix(path, "..") {
			return fmt.Errorf("volume path %q leaves the volume or starts with \"..\"", path)
		}
	}
	current, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if current != "" {
		same, err := shows(filepath.Join(dir, current), payload)
		if err != nil {
			return err
		}
		if same {
			return errors.Join(linkNames(dir, payload), dropOthers(dir, current))
		}
	}
	version, err := os.MkdirTemp(dir, dirName)
	if err != nil {
		return err
	}
	if err := writeVersion(version, payload, group); err != nil {
		os.RemoveAll(version)
		return err
	}
	link := filepath.Join(dir, newLink)
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(filepath.Base(version), link); err != nil {
		return err
	}
	if err := os.Rename(link, filepath.Join(dir, dataLink)); err != nil {
		return err
	}
	return errors.Join(linkNames(dir, payload), dropOthers(dir, filepath.Base(version)))
}

func writeVersion(dir string, payload Payload, group *int64) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for path, file := range payload {
		full := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(full, file.Data, file.Mode); err != nil {
			return err
		}
		mode := file.Mode
		uid, gid := -1, -1
		if file.Owner != nil {
			uid = int(*file.Owner)
		}
		if group != nil {
			gid = int(*group)
			mode |= 0o440
		}
		if uid >= 0 || gid >= 0 {
			if err := os.Chown(full, uid, gid); err != nil {
				return err
			}
		}
		if err := os.Chmod(full, mode); err != nil { // whatever the umask
			return err
		}
	}
	return nil
}

// shows reports whether the version in dir is payload.
func shows(dir string, payload Payload) (bool, error) {
	seen := 0
	same := true
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		file, ok := payload[rel]
		if !ok {
			same = false
			return fs.SkipAll
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		seen++
		if !bytes.Equal(data, file.Data) || info.Mode().Perm()&^0o440 != file.Mode.Perm()&^0o440 {
			same = false
			return fs.SkipAll
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return same && seen == len(payload), err
}

// linkNames makes the names that readers see, and removes those whose file is gone.
func linkNames(dir string, payload Payload) error {
	want := map[string]bool{}
	for path := range payload {
		want[strings.SplitN(path, "/", 2)[0]] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		switch {
		case strings.HasPrefix(name, ".."):
		case want[name]:
			delete(want, name)
		case e.Type()&fs.ModeSymlink != 0:
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	for name := range want {
		if err := os.Symlink(filepath.Join(dataLink, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// dropOthers removes versions that are not current.
func dropOthers(dir, current string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), dirName) && e.Name() != current {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// deleteStep deletes a file, or a directory with all that is in it. A directory below it that has a
// mount of its own, such as a disk of the user, stays with its content, and so do the directories
// above it.
func deleteStep(path string) (Step, error) {
	d, err := newDeletion(path)
	if err != nil {
		return Step{}, err
	}
	left, err := d.left(d.path)
	return Step{What: "delete " + path, Lines: d.kept(), Done: !left, Do: func(context.Context) error {
		again, err := newDeletion(path) // mounts that are gone by now keep nothing
		if err != nil {
			return err
		}
		return again.delete(again.path)
	}}, err
}

// deletion deletes a path, without the mounts below it.
type deletion struct {
	path   string
	mounts map[string]bool
}

func newDeletion(path string) (*deletion, error) {
	resolved, err := filepath.EvalSymlinks(filepath.Dir(path)) // the kernel's table has resolved paths
	if errors.Is(err, fs.ErrNotExist) {
		return &deletion{path: path}, nil
	}
	if err != nil {
		return nil, err
	}
	d := &deletion{path: filepath.Join(resolved, filepath.Base(path)), mounts: map[string]bool{}}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(d.path))
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	for _, m := range mounts {
		d.mounts[m.Mountpoint] = true
	}
	return d, nil
}

// kept names the mounts that stay.
func (d *deletion) kept() (lines []string) {
	for m := range d.mounts {
		if m != d.path {
			lines = append(lines, m+" has a mount of its own: it stays, with what is in it")
		}
	}
	return lines
}

// leads reports whether a directory is a mount, or is above one.
func (d *deletion) leads(path string) bool {
	for m := range d.mounts {
		if m == path || strings.HasPrefix(m, path+"/") {
			return true
		}
	}
	return false
}

// left reports whether anything is there that would be deleted.
func (d *deletion) left(path string) (bool, error) {
	switch {
	case !exists(path):
		return false, nil
	case !d.leads(path):
		return true, nil
	case path != d.path && d.mounts[path]:
		return false, nil
	}
	entries, err := os.ReadDir(path)
	for _, e := range entries {
		if is, err := d.left(filepath.Join(path, e.Name())); is || err != nil {
			return is, err
		}
	}
	return false, err
}

func (d *deletion) delete(path string) error {
	switch {
	case !exists(path):
		return nil
	case !d.leads(path):
		return os.RemoveAll(path)
	case path != d.path && d.mounts[path]:
		return nil
	}
	entries, err := os.ReadDir(path)
	for _, e := range entries {
		err = errors.Join(err, d.delete(filepath.Join(path, e.Name())))
	}
	return err
}

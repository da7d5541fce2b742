package backup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestRenameNew: a file gets a name that no other has, whatever the file system can do, and
// replaces no other file.
func TestRenameNew(t *testing.T) {
	lacks := func(errno syscall.Errno) func(from, to string) error {
		return func(from, to string) error { return &os.LinkError{Op: "link", Old: from, New: to, Err: errno} }
	}
	fails := func(string) error { return syscall.EIO }
	whole := renames{exclusive: renameExclusive, link: os.Link, replace: os.Rename, remove: os.Remove}
	with := func(edit func(*renames)) renames {
		r := whole
		edit(&r)
		return r
	}
	for name, c := range map[string]struct {
		renames
		stays bool // under its old name, too
	}{
		"all of it":             {renames: whole},
		"no renaming like that": {renames: with(func(r *renames) { r.exclusive = lacks(syscall.EINVAL) })},
		"nor removing": {
			renames: with(func(r *renames) { r.exclusive, r.remove = lacks(syscall.ENOSYS), fails }), stays: true},
		"no links": {
			renames: with(func(r *renames) { r.exclusive, r.link = lacks(syscall.EINVAL), lacks(syscall.EPERM) })},
		"links are not known": {
			renames: with(func(r *renames) { r.exclusive, r.link = lacks(syscall.ENOSYS), lacks(syscall.ENOTSUP) })},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			from, to, taken := filepath.Join(dir, "from"), filepath.Join(dir, "to"), filepath.Join(dir, "taken")
			for path, text := range map[string]string{from: "new", taken: "old"} {
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.renameNew(from, taken); !errors.Is(err, fs.ErrExist) {
				t.Errorf("to a name that somebody has: %v", err)
			}
			if err := c.renameNew(from, to); err != nil {
				t.Errorf("to a name that nobody has: %v", err)
			}
			for path, want := range map[string]string{taken: "old", to: "new"} {
				if text, err := os.ReadFile(path); err != nil || string(text) != want {
					t.Errorf("%s has %q, %v", path, text, err)
				}
			}
			if _, err := os.Lstat(from); (err == nil) != c.stays {
				t.Errorf("the old name: %v", err)
			}
		})
	}
	t.Run("a rename that fails", func(t *testing.T) {
		dir := t.TempDir()
		r := renames{exclusive: lacks(syscall.EINVAL), link: lacks(syscall.EPERM), replace: lacks(syscall.EIO),
			remove: os.Remove}
		if err := r.renameNew(filepath.Join(dir, "from"), filepath.Join(dir, "to")); !errors.Is(err, syscall.EIO) {
			t.Error(err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%v is left, %v", left, err)
		}
	})
}

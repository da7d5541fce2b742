package snapdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// TestDropOlder: older snapshots go, also if they are damaged. The snapshot itself, and those that
// are newer by their names, never go, whatever can be read of it.
func TestDropOlder(t *testing.T) {
	for _, fault := range []error{nil, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, fs.ErrPermission, syscall.EACCES,
		errors.New("checksum"), syscall.EIO} {
		for broken := range 4 { // which of the snapshots cannot be read
			t.Run(fmt.Sprint(fault, " of ", broken), func(t *testing.T) {
				dir := t.TempDir()
				s, err := Open(Options{Dir: dir, Keep: 9})
				if err != nil {
					t.Fatal(err)
				}
				var ids []string
				for i := range uint64(4) {
					ids = append(ids, write(t, s, 10*(i+1), "state"))
				}
				for _, name := range []string{ids[0] + damaged, ids[2] + damaged, ids[3] + damaged, "2-5-1" + damaged,
					"2-99-1" + temporary} {
					if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
						t.Fatal(err)
					}
				}
				all := mustList(t, s)
				than := all[1]
				if than.ID != ids[2] {
					t.Fatal(than.ID)
				}
				before := entries(t, dir)
				s.readFile = func(name string) ([]byte, error) {
					if fault != nil && filepath.Dir(name) == s.path(ids[broken]) {
						return nil, &fs.PathError{Op: "open", Path: name, Err: fault}
					}
					return os.ReadFile(name)
				}
				err = s.DropOlder(than)
				left := entries(t, dir)
				if fault != nil && !Damaged(fault) && broken < 2 {
					if !errors.Is(err, fault) || !slices.Equal(left, before) {
						t.Errorf("%v, and %q of %q are left", err, left, before)
					}
					return
				}
				want := []string{ids[2], ids[2] + damaged, ids[3], ids[3] + damaged}
				slices.Sort(want)
				if err != nil || !slices.Equal(left, want) {
					t.Errorf("%v, and %q are left, want %q", err, left, want)
				}
			})
		}
	}
}

// TestNamed: the name of a snapshot says how new it is.
func TestNamed(t *testing.T) {
	for id, want := range map[string]string{"2-10-1700000000000": "2 10", "3-9-5": "3 9", "": "0 0", "2-x-1": "0 0",
		"lost+found": "0 0", "7": "0 0"} {
		m := named(id)
		if got := fmt.Sprint(m.Term, m.Index); got != want || m.ID != id || strings.Contains(m.ID, damaged) {
			t.Errorf("%q is %s", id, got)
		}
	}
}

package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/barque/barque/internal/localpv"
)

// Local has the directories of the volumes that the cluster's provisioner has placed on this node,
// root/<name of PV>. They are made when a pod first needs them, and deleted when the cluster says
// so. Nothing outside of the root is made, changed or deleted: paths in PVs count only when they
// are what the root and the PV's name make, and no symbolic link is followed.
type Local struct{ root string }

// NewLocal returns the directories below root, which it makes. Only root reaches what is in them
// from the host.
func NewLocal(root string) (*Local, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("directory of local volumes: %w", err)
	}
	return &Local{root}, nil
}

// Root is where the volumes are.
func (l *Local) Root() string { return l.root }

// made tells whether a volume is one of the provisioner's in this root.
func (l *Local) made(pv *v1.PersistentVolume) bool {
	return l != nil && localpv.Is(pv) && filepath.IsLocal(pv.Name) && filepath.Base(pv.Name) == pv.Name &&
		filepath.Clean(pv.Spec.Local.Path) == localpv.Path(l.root, pv.Name)
}

// freshSuffix is of a directory that is not complete. No PV has such a name.
const freshSuffix = ".new~"

// ensure makes the directory of a volume, if it is not there. Any user of a pod may write to it, as
// to an emptyDir.
func (l *Local) ensure(pv *v1.PersistentVolume) error {
	root, err := os.OpenRoot(l.root)
	if err != nil {
		return err
	}
	defer root.Close()
	switch info, err := root.Lstat(pv.Name); {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return fmt.Errorf("%s is not a directory", filepath.Join(l.root, pv.Name))
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	fresh := pv.Name + freshSuffix
	if err := root.Mkdir(fresh, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := root.Chmod(fresh, 0o777); err != nil {
		return err
	}
	if err := root.Rename(fresh, pv.Name); err != nil {
		return err
	}
	return syncDir(l.root)
}

// Delete removes a volume's directory with what is in it. It may be called again after a failure.
func (l *Local) Delete(pv *v1.PersistentVolume) error {
	if !l.made(pv) {
		return fmt.Errorf("PV %s has the path %s, which is not below %s: not deleting it", pv.Name, pv.Spec.Local.Path, l.root)
	}
	root, err := os.OpenRoot(l.root)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range []string{pv.Name, pv.Name + freshSuffix} {
		if err := root.RemoveAll(name); err != nil {
			return fmt.Errorf("delete the directory of PV %s: %w", pv.Name, err)
		}
	}
	return syncDir(l.root)
}

// Names lists the directories that there are.
func (l *Local) Names() ([]string, error) {
	entries, err := os.ReadDir(l.root)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// usage measures a volume. Its size is what was asked for, though nothing but the disk's end keeps
// it there.
func (l *Local) usage(ctx context.Context, pv *v1.PersistentVolume) (*Usage, error) {
	return walked(ctx, localpv.Path(l.root, pv.Name))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

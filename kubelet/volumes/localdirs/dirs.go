package localdirs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/barque/barque/internal/localpv"
	"github.com/barque/barque/kubelet/volumes/diskusage"
)

// Dirs has the directories of the volumes that the cluster's provisioner has placed on this node,
// root/<name of PV>. They are made when a pod first needs them, and deleted when the cluster asks
// for it. On btrfs with quotas each is a subvolume that is limited to the volume's size; elsewhere
// sizes are numbers. The limit is against accidents: a subvolume that a pod makes in its volume has
// none. Nothing outside of the root is made, changed or deleted: a PV counts only when its path is
// made of the root and its name, and no symbolic link is followed.
//
// A directory that was made once is never made again: an empty one would pass for the data. The
// Record, outside of this disk, remembers it.
type Dirs struct {
	root   string
	record Record
}

// Record remembers which directories were made, even after the disk was replaced.
type Record interface {
	// MayMake returns nil if the directory of the volume was never made, or if its data was
	// declared lost. It calls has after the record was read.
	MayMake(ctx context.Context, pv *v1.PersistentVolume, has func() (bool, error)) error
	// Made records that the directory is there.
	Made(ctx context.Context, pv *v1.PersistentVolume) error
}

// New returns the directories below root, which it makes. On the host, only the user root
// reaches their content.
func New(root string, record Record) (*Dirs, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("directory of local volumes: %w", err)
	}
	return &Dirs{root, record}, nil
}

// Root is where the volumes are.
func (d *Dirs) Root() string { return d.root }

// Owns reports whether a volume is one of the provisioner's in this root.
func (d *Dirs) Owns(pv *v1.PersistentVolume) bool {
	return d != nil && localpv.Is(pv) && filepath.IsLocal(pv.Name) && filepath.Base(pv.Name) == pv.Name &&
		filepath.Clean(pv.Spec.Local.Path) == localpv.Path(d.root, pv.Name)
}

// freshSuffix marks a directory that is not complete. No PV has such a name.
const freshSuffix = ".new~"

// Enforces reports whether volumes that are made now are limited to their sizes; see Dirs.
func (d *Dirs) Enforces() (bool, error) {
	dir, err := os.Open(d.root)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	return btrfsQuotas(dir)
}

// Has reports whether the directory of a volume is there.
func (d *Dirs) Has(pv *v1.PersistentVolume) (bool, error) {
	if !d.Owns(pv) {
		return false, fmt.Errorf("PV %s has the path %s, which is not below %s", pv.Name, pv.Spec.Local.Path, d.root)
	}
	info, err := os.Lstat(localpv.Path(d.root, pv.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && info.IsDir(), err
}

// Ensure makes the directory of a volume, if it was never made. Any user of a pod may write to it,
// as to an emptyDir. Its record is written before a pod gets it.
func (d *Dirs) Ensure(ctx context.Context, pv *v1.PersistentVolume) error {
	has, err := d.Has(pv)
	if err != nil {
		return err
	}
	if !has {
		if err := d.record.MayMake(ctx, pv, func() (bool, error) { return d.Has(pv) }); err != nil {
			return err
		}
	}
	if err := d.make(pv); err != nil || has && pv.Annotations[localpv.DirectoryAnnotation] == localpv.Made {
		return err
	}
	return d.record.Made(ctx, pv)
}

// make makes the directory of a volume, if it is not there.
func (d *Dirs) make(pv *v1.PersistentVolume) error {
	root, err := os.OpenRoot(d.root)
	if err != nil {
		return err
	}
	defer root.Close()
	switch info, err := root.Lstat(pv.Name); {
	case err == nil && info.IsDir():
		return limit(root, pv.Name, pv)
	case err == nil:
		return fmt.Errorf("%s is not a directory", filepath.Join(d.root, pv.Name))
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	fresh := pv.Name + freshSuffix
	if err := makeDir(root, fresh); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := root.Chmod(fresh, 0o777); err != nil {
		return err
	}
	if err := limit(root, fresh, pv); err != nil {
		return err
	}
	if err := root.Rename(fresh, pv.Name); err != nil {
		return err
	}
	return syncDir(d.root)
}

// Limit sets the limit of a volume to the size in its PV. One that is not made yet gets its limit
// then, and one that was made where sizes were numbers has none.
func (d *Dirs) Limit(pv *v1.PersistentVolume) error {
	if !d.Owns(pv) {
		return nil
	}
	root, err := os.OpenRoot(d.root)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := limit(root, pv.Name, pv); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// makeDir makes a directory, as a subvolume where its size can be limited.
func makeDir(root *os.Root, name string) error {
	parent, err := root.Open(".")
	if err != nil {
		return err
	}
	defer parent.Close()
	if quotas, err := btrfsQuotas(parent); err != nil {
		return err
	} else if quotas {
		return btrfsMake(parent, name)
	}
	return root.Mkdir(name, 0o700)
}

// limit limits a directory that is a subvolume.
func limit(root *os.Root, name string, pv *v1.PersistentVolume) error {
	dir, err := root.Open(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	id, err := limited(dir)
	if err != nil || id == 0 {
		return err
	}
	size := pv.Spec.Capacity.Storage().Value()
	if _, have, err := btrfsUse(dir, id); err != nil || have == uint64(size) {
		return err
	}
	return btrfsLimit(dir, id, size)
}

// limited returns the number of a directory's subvolume, or 0 where its size is not enforced.
func limited(dir *os.File) (uint64, error) {
	if quotas, err := btrfsQuotas(dir); err != nil || !quotas {
		return 0, err
	}
	return btrfsID(dir)
}

// Delete removes a volume's directory and its content. It may be called again after a failure.
func (d *Dirs) Delete(pv *v1.PersistentVolume) error {
	if !d.Owns(pv) {
		return fmt.Errorf("PV %s has the path %s, which is not below %s: not deleting it", pv.Name, pv.Spec.Local.Path,
			d.root)
	}
	root, err := os.OpenRoot(d.root)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range []string{pv.Name, pv.Name + freshSuffix} {
		if err := remove(root, name); err != nil {
			return fmt.Errorf("delete the directory of PV %s: %w", pv.Name, err)
		}
	}
	return syncDir(d.root)
}

// remove removes a directory with its content, and its limit.
func remove(root *os.Root, name string) error {
	id := uint64(0)
	if info, err := root.Lstat(name); err == nil && info.IsDir() {
		if id, err = subvolume(root, name); err != nil {
			return err
		}
	}
	if err := root.RemoveAll(name); err != nil || id == 0 {
		return err
	}
	parent, err := root.Open(".")
	if err != nil {
		return err
	}
	defer parent.Close()
	return btrfsForget(parent, id)
}

// subvolume returns limited's number of a directory below the root.
func subvolume(root *os.Root, name string) (uint64, error) {
	dir, err := root.Open(name)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	return limited(dir)
}

// Names lists the existing directories.
func (d *Dirs) Names() ([]string, error) {
	entries, err := os.ReadDir(d.root)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// Usage measures a volume. Without a limit the free space is the disk's.
func (d *Dirs) Usage(ctx context.Context, pv *v1.PersistentVolume) (*diskusage.Usage, error) {
	path := localpv.Path(d.root, pv.Name)
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	id, err := limited(dir)
	if err != nil {
		return nil, err
	}
	if id == 0 {
		return diskusage.Walk(ctx, path)
	}
	used, most, err := btrfsUse(dir, id)
	if err != nil {
		return nil, err
	}
	if most == 0 {
		return diskusage.Walk(ctx, path)
	}
	u, err := diskusage.FileSystem(path)
	if err != nil {
		return nil, err
	}
	u.Used, u.Capacity = used, most
	u.Available = min(u.Available, most-min(used, most))
	return u, nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

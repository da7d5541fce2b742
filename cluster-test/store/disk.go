package store

import (
	"path/filepath"

	"github.com/barque/barque/cluster-test/disk"
)

// DisksPossible is nil where members can have a disk of their own, and otherwise an error with
// the reason.
func DisksPossible() error {
	if err := disk.Possible(); err != nil {
		return err
	}
	k, err := newKeeper(true)
	if err == nil {
		k.stop()
	}
	return err
}

// newDisk makes a file system of a member's own: it can be full, and it can lose power. All its
// methods run on the keeper's thread, where it is mounted.
func newDisk(dir string, megabytes int) (*disk.Disk, error) {
	return disk.New(filepath.Join(dir, "disk.img"), filepath.Join(dir, "disk"), megabytes)
}

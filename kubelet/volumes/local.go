package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/mount-utils"
	utilexec "k8s.io/utils/exec"

	"github.com/barque/barque/kubelet/volumes/diskusage"
	"github.com/barque/barque/kubelet/volumes/fsgroup"
	"github.com/barque/barque/kubelet/volumes/hostmount"
	"github.com/barque/barque/kubelet/volumes/localdirs"
)

// locals are persistent volumes on disks of this node: directories, or block devices, which get a
// file system where pods want files. It also makes the directories of the
// cluster's own provisioner.
type locals struct {
	mounts Mounts
	own    *localdirs.Dirs
}

// missingPath is returned for a local volume with a missing path. Making it would hide a disk that
// is not mounted.
type missingPath struct{ path string }

func (e *missingPath) Error() string { return fmt.Sprintf("path %q does not exist", e.path) }

func (locals) Name() string { return "kubernetes.io/local-volume" }

func (locals) Provides(v *Volume) bool { return v.PV != nil && v.PV.Spec.Local != nil }

// NeedsStaging implements Stager: a device that pods want files on is mounted once, at the node's
// place for it.
func (p locals) NeedsStaging(v *Volume) (bool, error) {
	if v.Block() || p.own.Owns(v.PV) {
		return false, nil
	}
	return isDevice(v.PV.Spec.Local.Path)
}

// StagingPlace implements Stager.
func (p locals) StagingPlace(v *Volume) string {
	return filepath.Join(p.Name(), "mounts", v.PV.Name)
}

// Stage implements Stager. A device without a file system gets one. A device with another file
// system than the volume's is refused.
func (p locals) Stage(ctx context.Context, v *Volume) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if mounted, err := p.mounts.Mounted(v.Staged); err != nil || mounted {
		return err
	}
	if err := os.MkdirAll(v.Staged, 0o750); err != nil {
		return err
	}
	var kind string
	if t := v.PV.Spec.Local.FSType; t != nil {
		kind = *t
	}
	tools := &mount.SafeFormatAndMount{Interface: mount.NewWithoutSystemd(""), Exec: utilexec.New()}
	if err := tools.FormatAndMount(v.PV.Spec.Local.Path, v.Staged, kind, v.PV.Spec.MountOptions); err != nil {
		return fmt.Errorf("mount the device %s: %w", v.PV.Spec.Local.Path, err)
	}
	return nil
}

// Unstage implements Stager.
func (p locals) Unstage(v *Volume) error {
	if err := p.mounts.Release(v.Staged); err != nil {
		return err
	}
	return removeEmpty(v.Staged)
}

// SetUp implements Plugin.
func (p locals) SetUp(ctx context.Context, pod *v1.Pod, v *Volume) (string, time.Time, error) {
	path := v.PV.Spec.Local.Path
	if v.Block() {
		device, err := blockDevice(path)
		return device, time.Time{}, err
	}
	if mounted, err := p.mounts.Mounted(v.Dir); err != nil || mounted {
		return v.Dir, time.Time{}, err
	}
	how := hostmount.Bind{ReadOnly: v.ReadOnly}
	switch {
	case v.Staged != "":
		path = v.Staged
	case p.own.Owns(v.PV):
		if err := p.own.Ensure(ctx, v.PV); err != nil {
			return "", time.Time{}, err
		}
		how.NoFollow = true
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", time.Time{}, &missingPath{path}
	}
	if err != nil {
		return "", time.Time{}, err
	}
	if !info.IsDir() {
		return "", time.Time{}, fmt.Errorf("%s is neither a directory nor a block device", path)
	}
	if !v.ReadOnly && fsgroup.Of(pod) != nil {
		// The first pod decides: files must not change their group while another pod uses them.
		defer v.Lock()()
		shared, err := v.Shared()
		if err == nil && !shared {
			err = fsgroup.Apply(ctx, pod, path, false)
		}
		if err != nil {
			return "", time.Time{}, err
		}
	}
	// The place gets its mount last: the next call looks for it.
	return v.Dir, time.Time{}, p.mounts.Bind(path, v.Dir, how)
}

// TearDown implements Plugin.
func (p locals) TearDown(v *Volume) error { return p.mounts.Release(v.Dir) }

// Usage implements Plugin.
func (p locals) Usage(ctx context.Context, v *Volume, path string) (*diskusage.Usage, error) {
	switch {
	case v.Block():
		return nil, nil
	case p.own.Owns(v.PV):
		return p.own.Usage(ctx, v.PV)
	}
	return diskusage.FileSystem(path)
}

func isDevice(path string) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, &missingPath{path}
	}
	if err != nil {
		return false, err
	}
	return info.Mode()&fs.ModeDevice != 0 && info.Mode()&fs.ModeCharDevice == 0, nil
}

// blockDevice follows symbolic links, such as those below /dev/disk, to a device.
func blockDevice(path string) (string, error) {
	switch device, err := isDevice(path); {
	case err != nil:
		return "", err
	case !device:
		return "", fmt.Errorf("%s is not a block device", path)
	}
	return filepath.EvalSymlinks(path)
}

func removeEmpty(dir string) error {
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

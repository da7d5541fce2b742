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

	"github.com/barque/barque/kubelet/volumes/diskusage"
)

// ensureHostPath checks that a path of the host has the type in the pod's spec, and makes it where
// it may.
func ensureHostPath(source *v1.HostPathVolumeSource) error {
	kind := v1.HostPathUnset
	if source.Type != nil {
		kind = *source.Type
	}
	if kind == v1.HostPathUnset {
		return nil
	}
	info, err := os.Stat(source.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && kind == v1.HostPathDirectoryOrCreate:
		return os.MkdirAll(source.Path, 0o755)
	case errors.Is(err, fs.ErrNotExist) && kind == v1.HostPathFileOrCreate:
		if _, err := os.Stat(filepath.Dir(source.Path)); err != nil {
			return fmt.Errorf("hostPath type check failed: %w", err)
		}
		f, err := os.OpenFile(source.Path, os.O_CREATE|os.O_RDONLY, 0o644)
		if err != nil {
			return err
		}
		return f.Close()
	case err != nil:
		return fmt.Errorf("hostPath type check failed: %w", err)
	}
	mode := info.Mode()
	var ok bool
	var want string
	switch kind {
	case v1.HostPathDirectory, v1.HostPathDirectoryOrCreate:
		ok, want = mode.IsDir(), "directory"
	case v1.HostPathFile, v1.HostPathFileOrCreate:
		ok, want = mode.IsRegular(), "file"
	case v1.HostPathSocket:
		ok, want = mode&fs.ModeSocket != 0, "socket"
	case v1.HostPathCharDev:
		ok, want = mode&fs.ModeCharDevice != 0, "character device"
	case v1.HostPathBlockDev:
		ok, want = mode&fs.ModeDevice != 0 && mode&fs.ModeCharDevice == 0, "block device"
	}
	if !ok {
		return fmt.Errorf("hostPath type check failed: %s is not a %s", source.Path, want)
	}
	return nil
}

// hostPaths are files of the host. They are neither mounted nor removed here.
type hostPaths struct{}

func (hostPaths) Name() string { return "kubernetes.io/host-path" }

func (hostPaths) Provides(v *Volume) bool { return hostPathOf(v) != nil }

func hostPathOf(v *Volume) *v1.HostPathVolumeSource {
	if v.PV != nil {
		return v.PV.Spec.HostPath
	}
	if v.Source != nil {
		return v.Source.HostPath
	}
	return nil
}

// SetUp implements Plugin.
func (hostPaths) SetUp(_ context.Context, _ *v1.Pod, v *Volume) (string, time.Time, error) {
	source := hostPathOf(v)
	return source.Path, time.Time{}, ensureHostPath(source)
}

// TearDown implements Plugin.
func (hostPaths) TearDown(*Volume) error { return nil }

// Usage implements Plugin. A path of the host has no size of its own; behind a claim its file
// system is measured.
func (hostPaths) Usage(_ context.Context, v *Volume, path string) (*diskusage.Usage, error) {
	if v.PV == nil {
		return nil, nil
	}
	return diskusage.FileSystem(path)
}

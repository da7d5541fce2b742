package volumes

import (
	"context"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/barque/barque/kubelet/volumes/atomicdir"
	"github.com/barque/barque/kubelet/volumes/diskusage"
	"github.com/barque/barque/kubelet/volumes/fsgroup"
	"github.com/barque/barque/kubelet/volumes/hostmount"
	"github.com/barque/barque/kubelet/volumes/nested"
)

// apiData is the common part of plugins whose files are made of API data.
type apiData struct {
	objects      Objects
	tokens       Tokens
	bundles      TrustBundles
	certificates Certificates
	mounts       Mounts
	allocatable  func() v1.ResourceList
}

// setUp writes the files. Those of a secret volume are in memory.
func (m apiData) setUp(ctx context.Context, pod *v1.Pod, v *Volume, secret bool) (string, time.Time, error) {
	payload, next, err := m.payload(ctx, pod, v.Name, v.Source)
	if err != nil {
		return "", time.Time{}, err
	}
	if err := os.MkdirAll(v.Dir, 0o755); err != nil {
		return "", time.Time{}, err
	}
	if secret {
		if err := m.mounts.Tmpfs(v.Dir, 0, hostmount.Root{Mode: 0o755}); err != nil {
			return "", time.Time{}, err
		}
	}
	if err := atomicdir.Replace(v.Dir, payload, fsgroup.Of(pod)); err != nil {
		return "", time.Time{}, err
	}
	return v.Dir, next, makeMountpoints(v.Dir, nested.Mountpoints(pod, v.Name))
}

// makeMountpoints makes directories for mounts inside of a volume that containers cannot change.
func makeMountpoints(dir string, paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, path := range paths {
		if _, err := root.Stat(path); err == nil {
			continue // a file of the volume, onto which a file may be mounted
		}
		if err := root.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("a place for the mount at %s in this volume: %w", path, err)
		}
	}
	return nil
}

// TearDown implements Plugin.
func (m apiData) TearDown(v *Volume) error { return m.mounts.Unmount(v.Dir) }

// Usage implements Plugin. The files are part of the node's own file system, or of its memory.
func (apiData) Usage(ctx context.Context, _ *Volume, path string) (*diskusage.Usage, error) {
	return diskusage.Walk(ctx, path)
}

type configMaps struct{ apiData }

func (configMaps) Name() string            { return "kubernetes.io/configmap" }
func (configMaps) Provides(v *Volume) bool { return v.Source != nil && v.Source.ConfigMap != nil }
func (p configMaps) SetUp(ctx context.Context, pod *v1.Pod, v *Volume) (string, time.Time, error) {
	return p.setUp(ctx, pod, v, false)
}

type secrets struct{ apiData }

func (secrets) Name() string            { return "kubernetes.io/secret" }
func (secrets) Provides(v *Volume) bool { return v.Source != nil && v.Source.Secret != nil }
func (p secrets) SetUp(ctx context.Context, pod *v1.Pod, v *Volume) (string, time.Time, error) {
	return p.setUp(ctx, pod, v, true)
}

type downwardAPIs struct{ apiData }

func (downwardAPIs) Name() string            { return "kubernetes.io/downward-api" }
func (downwardAPIs) Provides(v *Volume) bool { return v.Source != nil && v.Source.DownwardAPI != nil }
func (p downwardAPIs) SetUp(ctx context.Context, pod *v1.Pod, v *Volume) (string, time.Time, error) {
	return p.setUp(ctx, pod, v, false)
}

type projections struct{ apiData }

func (projections) Name() string            { return "kubernetes.io/projected" }
func (projections) Provides(v *Volume) bool { return v.Source != nil && v.Source.Projected != nil }
func (p projections) SetUp(ctx context.Context, pod *v1.Pod, v *Volume) (string, time.Time, error) {
	return p.setUp(ctx, pod, v, true)
}

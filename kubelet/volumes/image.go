package volumes

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/kubelet/volumes/diskusage"
)

// Images gets images for volumes.
type Images interface {
	// Ensure makes an image present by the pull policy of a container, and returns its reference.
	Ensure(
		ctx context.Context, pod *v1.Pod, container *v1.Container, sandbox *runtimeapi.PodSandboxConfig,
	) (ref string, err error)
	// ImageStatus returns nil for an image that is not present.
	ImageStatus(ctx context.Context, image string) (*runtimeapi.Image, error)
}

// imageVolumes are the files of images, read-only. The container runtime mounts them, and a
// reference of the image stands in place of a path. A pod's image is fixed by its first pull, and
// the disk remembers it.
type imageVolumes struct{ images Images }

func (imageVolumes) Name() string            { return "kubernetes.io/image" }
func (imageVolumes) Provides(v *Volume) bool { return v.Source != nil && v.Source.Image != nil }

// SetUp implements Plugin.
func (p imageVolumes) SetUp(ctx context.Context, pod *v1.Pod, v *Volume) (string, time.Time, error) {
	file := filepath.Join(v.Dir, "ref")
	switch ref, err := os.ReadFile(file); {
	case err == nil:
		present, err := p.images.ImageStatus(ctx, string(ref))
		if err != nil || present != nil {
			return string(ref), time.Time{}, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return "", time.Time{}, err
	}
	ref, err := p.images.Ensure(ctx, pod,
		&v1.Container{Image: v.Source.Image.Reference, ImagePullPolicy: v.Source.Image.PullPolicy}, nil)
	if err != nil {
		return "", time.Time{}, err
	}
	return ref, time.Time{}, atomicfile.Write(file, []byte(ref), 0o600)
}

// TearDown implements Plugin.
func (imageVolumes) TearDown(*Volume) error { return nil }

// Usage implements Plugin. Images are measured as a whole.
func (imageVolumes) Usage(context.Context, *Volume, string) (*diskusage.Usage, error) {
	return nil, nil
}

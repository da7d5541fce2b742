package containerd

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

	"github.com/barque/barque/kubelet/bundle"
)

const (
	// criNamespace is the containerd namespace in which CRI keeps images and pods.
	criNamespace = "k8s.io"

	// labelSum marks a built-in image with the checksum of the tar it came from:
	// a newer Barque with another image under the same name imports it again.
	labelSum = "barque.local/sha256"

	// Labels of the CRI plugin: the image is listed, and its garbage collection
	// leaves it alone. There may be no registry to fetch it from again.
	labelManaged = "io.cri-containerd.image"
	labelPinned  = "io.cri-containerd.pinned"
)

// importImages makes containerd hold the built-in images, unpacked.
func importImages(ctx context.Context, runtime *client.Client, components *bundle.Bundle, snapshotter string) error {
	for _, image := range components.Images() {
		if err := importImage(ctx, runtime, components, image, snapshotter); err != nil {
			return fmt.Errorf("import built-in image %s: %w", image.Ref, err)
		}
	}
	return nil
}

func importImage(
	ctx context.Context, runtime *client.Client, components *bundle.Bundle, image bundle.Image, snapshotter string,
) error {
	present, err := runtime.GetImage(ctx, image.Ref)
	switch {
	case errdefs.IsNotFound(err):
	case err != nil:
		return err
	case present.Labels()[labelSum] == image.SHA256:
		unpacked, err := present.IsUnpacked(ctx, snapshotter)
		if err == nil && unpacked {
			return nil
		}
	}
	tar, err := components.OpenImage(image)
	if err != nil {
		return err
	}
	imported, err := runtime.Import(ctx, tar, client.WithImageLabels(map[string]string{
		labelSum:     image.SHA256,
		labelManaged: "managed",
		labelPinned:  "pinned",
	}))
	if err != nil {
		return err
	}
	for _, one := range imported {
		if err := client.NewImage(runtime, one).Unpack(ctx, snapshotter); err != nil {
			return fmt.Errorf("unpack: %w", err)
		}
	}
	if len(imported) == 0 {
		return errors.New("its tar holds no image")
	}
	return nil
}

package images

import (
	"context"
	"fmt"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/cri"
)

// WithRuntime calls do with a client of the container runtime at the socket. Its errors are for
// commands about the node of this machine.
func WithRuntime(socket string, do func(runtime *cri.Client) error) error {
	runtime, err := cri.Dial(socket)
	if err != nil {
		return err
	}
	defer runtime.Close()
	err = do(runtime)
	if cri.IsUnavailable(err) {
		return fmt.Errorf(
			"the container runtime at %s does not answer: %s; is the node running, and is --data-dir right?", socket,
			cri.Message(err))
	}
	return err
}

// Listed is an image of this machine, for machine-readable output.
type Listed struct {
	Names  []string `json:"names"`
	ID     string   `json:"id"`
	Bytes  uint64   `json:"bytes"`
	Pinned bool     `json:"pinned,omitempty"` // never removed for want of disk
}

// List returns the images of this machine, by their names.
func List(ctx context.Context, runtime interface {
	ListImages(ctx context.Context) ([]*runtimeapi.Image, error)
}) ([]Listed, error) {
	all, err := runtime.ListImages(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the images: %w", err)
	}
	list := []Listed{}
	for _, image := range all {
		names := image.RepoTags
		if len(names) == 0 {
			names = image.RepoDigests
		}
		list = append(list, Listed{Names: names, ID: image.Id, Bytes: image.Size, Pinned: image.Pinned})
	}
	slices.SortFunc(list, func(a, b Listed) int { return slices.Compare(a.Names, b.Names) })
	return list, nil
}

// Remove removes an image by its name or its ID.
func Remove(ctx context.Context, runtime interface {
	ImageStatus(ctx context.Context, image string) (*runtimeapi.Image, error)
	RemoveImage(ctx context.Context, image string) error
}, name string) error {
	full := name
	if normal, err := Normalize(name); err == nil {
		full = normal
	}
	image, err := runtime.ImageStatus(ctx, full)
	if err == nil && image == nil && full != name {
		full = name // an ID
		image, err = runtime.ImageStatus(ctx, full)
	}
	if err != nil {
		return fmt.Errorf("look for image %s: %w", name, err)
	}
	if image == nil {
		return fmt.Errorf("image %s is not on this machine; `barque image ls` lists those that are", name)
	}
	if err := runtime.RemoveImage(ctx, full); err != nil {
		return fmt.Errorf("remove image %s: %w", name, err)
	}
	return nil
}

package cache

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// setImages keeps the index of images to nodes and builds the node's own view of its images. The
// number of nodes with an image is not updated later: it only steers a soft preference.
func (c *Cache) setImages(e *entry, old, node *v1.Node) {
	if old != nil && node != nil && slices.EqualFunc(old.Status.Images, node.Status.Images, sameImage) {
		return
	}
	if old != nil {
		for _, image := range old.Status.Images {
			for _, name := range image.Names {
				if delete(c.images[name], e.name); len(c.images[name]) == 0 {
					delete(c.images, name)
				}
			}
		}
	}
	if node == nil {
		return
	}
	states := make(map[string]*fwk.ImageStateSummary, len(node.Status.Images))
	for _, image := range node.Status.Images {
		for _, name := range image.Names {
			if c.images[name] == nil {
				c.images[name] = map[string]struct{}{}
			}
			c.images[name][e.name] = struct{}{}
			states[name] = &fwk.ImageStateSummary{Size: image.SizeBytes, NumNodes: len(c.images[name])}
		}
	}
	e.info.SetImageStates(states)
}

func sameImage(a, b v1.ContainerImage) bool {
	return a.SizeBytes == b.SizeBytes && slices.Equal(a.Names, b.Names)
}

package plugins

import (
	"context"
	"strings"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins/names"
)

const (
	imagesKey fwk.StateKey = names.ImageLocality

	// Sizes between which presence of a container's images counts from nothing to fully.
	smallImage int64 = 23 << 20
	largeImage int64 = 1000 << 20
)

// ImageLocality prefers nodes that have the pod's images. An image's bytes count by the share of
// the candidates that have it. So the first node with an image does not attract all pods that use
// it.
type ImageLocality struct{}

// images holds, by name, the share of the candidate nodes that have an image.
type images map[string]float64

// Clone returns the same: it does not change.
func (i images) Clone() fwk.StateData { return i }

// Name of the plugin.
func (ImageLocality) Name() string { return names.ImageLocality }

// PreScore counts the candidates that have each image.
func (ImageLocality) PreScore(_ context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	share := images{}
	for _, name := range imagesOf(pod) {
		n := 0
		for _, node := range nodes {
			if node.GetImageStates()[name] != nil {
				n++
			}
		}
		if n > 0 {
			share[name] = float64(n) / float64(len(nodes))
		}
	}
	if len(share) == 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	state.Write(imagesKey, share)
	return nil
}

// Score is the share of the bytes to pull that the node has, in percent.
func (ImageLocality) Score(
	_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo,
) (int64, *fwk.Status) {
	share, _ := framework.ReadState[images](state, imagesKey)
	names := imagesOf(pod)
	var bytes int64
	for _, name := range names {
		if image := node.GetImageStates()[name]; image != nil {
			bytes += int64(float64(image.Size) * share[name])
		}
	}
	limit := largeImage * int64(len(names))
	bytes = min(max(bytes, smallImage), limit)
	return fwk.MaxScore * (bytes - smallImage) / (limit - smallImage), nil
}

// ScoreExtensions is nil: scores are percentages already.
func (ImageLocality) ScoreExtensions() fwk.ScoreExtensions { return nil }

func imagesOf(pod *v1.Pod) []string {
	names := make([]string, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
	for i := range pod.Spec.InitContainers {
		names = append(names, fullImageName(pod.Spec.InitContainers[i].Image))
	}
	for i := range pod.Spec.Containers {
		names = append(names, fullImageName(pod.Spec.Containers[i].Image))
	}
	return names
}

// fullImageName spells a name as nodes report it: with registry, path and tag.
func fullImageName(name string) string {
	first, rest, found := strings.Cut(name, "/")
	switch {
	case !found:
		name = "docker.io/library/" + name
	case !strings.ContainsAny(first, ".:") && first != "localhost":
		name = "docker.io/" + first + "/" + rest
	}
	if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") && !strings.Contains(name, "@") {
		name += ":latest"
	}
	return name
}

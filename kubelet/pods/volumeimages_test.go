package pods

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/pods/lifecycle"
)

type imagesByID map[string]*runtimeapi.Image

func (i imagesByID) ImageStatus(_ context.Context, id string) (*runtimeapi.Image, error) {
	return i[id], nil
}

// TestStatusNamesImagesOfVolumes: the status of a mount names its image, also after a restart of
// the kubelet.
func TestStatusNamesImagesOfVolumes(t *testing.T) {
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
	pod.Spec.Volumes = []v1.Volume{
		{Name: "image", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "example.org/x:1"}}},
		{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"},
		{Name: "image", MountPath: "/image", SubPath: "part"}}
	in := lifecycle.StatusInput{Facts: lifecycle.Facts{Pod: pod}}
	mounts := func() []v1.VolumeMountStatus { return lifecycle.Status(in).ContainerStatuses[0].VolumeMounts }
	if got := mounts(); len(got) != 2 || got[1].VolumeStatus != nil {
		t.Errorf("before the image is known: %+v", got)
	}
	known := imagesByID{"sha256:1": {Id: "sha256:1"},
		"sha256:2": {Id: "sha256:2", RepoDigests: []string{"example.org/x@sha256:3", "example.org/y@sha256:3"}}}
	w := newWorker(New(Config{Images: known}), "u")
	w.syncCtx = t.Context()
	for id, want := range map[string]string{"sha256:2": "example.org/x@sha256:3", "sha256:1": "sha256:1"} {
		w.mounts.paths = map[string]string{"data": "/host/data", "image": id}
		w.nameImages(pod)
		in.VolumeImages = w.mounts.images
		if got := mounts(); got[0].VolumeStatus != nil || got[1].VolumeStatus == nil ||
			got[1].VolumeStatus.Image.ImageRef != want {
			t.Errorf("%s: %+v", id, got)
		}
	}
	in.VolumeImages = map[string]string{"image": "sha256:1"}
	in.Pod = pod.DeepCopy()
	in.Pod.Status = lifecycle.Status(in)
	in.VolumeImages = nil
	if got := mounts(); got[1].VolumeStatus == nil || got[1].VolumeStatus.Image.ImageRef != "sha256:1" {
		t.Errorf("after a restart: %+v", got)
	}
}

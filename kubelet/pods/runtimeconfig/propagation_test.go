package runtimeconfig

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// TestMountPropagation: the runtime gets the mount propagation between a container and its host,
// also for subpaths of volumes and for image volumes.
func TestMountPropagation(t *testing.T) {
	pod := &v1.Pod{
		Spec: v1.PodSpec{
			Volumes: []v1.Volume{{Name: "v"},
				{Name: "image", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{}}}}}}
	for mode, want := range map[v1.MountPropagationMode]runtimeapi.MountPropagation{
		"":                                 runtimeapi.MountPropagation_PROPAGATION_PRIVATE,
		v1.MountPropagationNone:            runtimeapi.MountPropagation_PROPAGATION_PRIVATE,
		v1.MountPropagationHostToContainer: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
		v1.MountPropagationBidirectional:   runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL,
	} {
		given := ptr.To(mode)
		if mode == "" {
			given = nil
		}
		c := &v1.Container{VolumeMounts: []v1.VolumeMount{
			{Name: "v", MountPath: "/v", MountPropagation: given},
			{Name: "image", MountPath: "/image", MountPropagation: given},
		}}
		list, err := (&Builder{Volumes: labelled{}}).mounts(pod, c,
			Input{Paths: map[string]string{"v": "/host/v", "image": "sha256:1"}}, nil)
		if err != nil || len(list) != 2 {
			t.Fatalf("%q: %v, %v", mode, list, err)
		}
		for _, m := range list {
			if m.Propagation != want {
				t.Errorf("%q at %s: %v, want %v", mode, m.ContainerPath, m.Propagation, want)
			}
		}
	}
}

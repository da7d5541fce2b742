package pods

import (
	"context"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// labelled are volumes of which one may get the label of its pod.
type labelled struct{ volume string }

func (labelled) SubPath(types.UID, string, string, string, int, string) (string, error) {
	return "", nil
}
func (labelled) PodDir(types.UID) string                    { return "" }
func (l labelled) Relabels(_ types.UID, volume string) bool { return volume == l.volume }

// TestMountsOfVolumes: a claim that is read-only is so in containers, images are left to the
// runtime, and block volumes become devices.
func TestMountsOfVolumes(t *testing.T) {
	claim := func(name string, readOnly bool) v1.Volume {
		return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name, ReadOnly: readOnly}}}
	}
	pod := podWith(v1.RestartPolicyAlways, "c")
	pod.Spec.Volumes = []v1.Volume{claim("rw", false), claim("ro", true), claim("disk", false), claim("frozen", true),
		{Name: "image", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "example.org/x:1"}}}}
	c := &pod.Spec.Containers[0]
	c.VolumeMounts = []v1.VolumeMount{{Name: "rw", MountPath: "/rw"}, {Name: "ro", MountPath: "/ro"}, {Name: "image", MountPath: "/image", SubPath: "part"}}
	c.VolumeDevices = []v1.VolumeDevice{{Name: "disk", DevicePath: "/dev/xvda"}, {Name: "frozen", DevicePath: "/dev/xvdb"}}
	in := containerInput{Start: Start{Container: c}, Paths: map[string]string{"rw": "/host/rw", "ro": "/host/ro", "disk": "/dev/a", "frozen": "/dev/b", "image": "sha256:1"}}
	mounts, err := (&Kit{Volumes: labelled{"rw"}}).mounts(pod, c, in, nil)
	if err != nil || len(mounts) != 3 {
		t.Fatalf("%v %v", mounts, err)
	}
	if mounts[0].Readonly || !mounts[1].Readonly {
		t.Errorf("read-only: %t, %t", mounts[0].Readonly, mounts[1].Readonly)
	}
	if !mounts[0].SelinuxRelabel || mounts[1].SelinuxRelabel {
		t.Errorf("relabelled: %t, %t", mounts[0].SelinuxRelabel, mounts[1].SelinuxRelabel)
	}
	if m := mounts[2]; m.HostPath != "" || m.Image.GetImage() != "sha256:1" || m.ImageSubPath != "part" || !m.Readonly {
		t.Errorf("the image: %v", m)
	}
	blocks, err := devices(pod, c, in.Paths)
	if err != nil || len(blocks) != 2 {
		t.Fatalf("%v %v", blocks, err)
	}
	if b := blocks[0]; b.HostPath != "/dev/a" || b.ContainerPath != "/dev/xvda" || b.Permissions != "mrw" || blocks[1].Permissions != "r" {
		t.Errorf("devices: %v", blocks)
	}
	if _, err := devices(pod, c, nil); err == nil || !strings.Contains(err.Error(), `"disk"`) {
		t.Errorf("without the volume: %v", err)
	}
}

// TestAPIDataIsReadOnly: the kubelet writes these files as root, and a container that could put a
// symlink among them would have it write elsewhere on the node.
func TestAPIDataIsReadOnly(t *testing.T) {
	for name, source := range map[string]v1.VolumeSource{
		"configMap":   {ConfigMap: &v1.ConfigMapVolumeSource{}},
		"secret":      {Secret: &v1.SecretVolumeSource{}},
		"downwardAPI": {DownwardAPI: &v1.DownwardAPIVolumeSource{}},
		"projected":   {Projected: &v1.ProjectedVolumeSource{}},
		"emptyDir":    {EmptyDir: &v1.EmptyDirVolumeSource{}},
	} {
		pod := podWith(v1.RestartPolicyAlways, "c")
		pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: source}}
		c := &pod.Spec.Containers[0]
		c.VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}, {Name: "v", MountPath: "/part", SubPath: "part"}}
		in := containerInput{Start: Start{Container: c}, Paths: map[string]string{"v": "/host/v"}}
		mounts, err := (&Kit{Volumes: labelled{}}).mounts(pod, c, in, nil)
		if err != nil || len(mounts) != 2 {
			t.Fatalf("%s: %v %v", name, mounts, err)
		}
		for _, m := range mounts {
			if m.Readonly != (name != "emptyDir") {
				t.Errorf("%s at %s: read-only is %t", name, m.ContainerPath, m.Readonly)
			}
		}
	}
}

type imagesByID map[string]*runtimeapi.Image

func (i imagesByID) ImageStatus(_ context.Context, id string) (*runtimeapi.Image, error) {
	return i[id], nil
}

// TestStatusNamesImagesOfVolumes: the status of a mount names its image, also after a restart of
// the kubelet.
func TestStatusNamesImagesOfVolumes(t *testing.T) {
	pod := podWith(v1.RestartPolicyAlways, "c")
	pod.Spec.Volumes = []v1.Volume{{Name: "image", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "example.org/x:1"}}},
		{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}, {Name: "image", MountPath: "/image", SubPath: "part"}}
	in := StatusInput{Facts: Facts{Pod: pod}}
	mounts := func() []v1.VolumeMountStatus { return Status(in).ContainerStatuses[0].VolumeMounts }
	if got := mounts(); len(got) != 2 || got[1].VolumeStatus != nil {
		t.Errorf("before the image is known: %+v", got)
	}
	known := imagesByID{"sha256:1": {Id: "sha256:1"}, "sha256:2": {Id: "sha256:2", RepoDigests: []string{"example.org/x@sha256:3", "example.org/y@sha256:3"}}}
	w := newWorker(New(Config{Images: known}), "u")
	w.syncCtx = t.Context()
	for id, want := range map[string]string{"sha256:2": "example.org/x@sha256:3", "sha256:1": "sha256:1"} {
		w.paths = map[string]string{"data": "/host/data", "image": id}
		w.nameImages(pod)
		in.VolumeImages = w.volumeImages
		if got := mounts(); got[0].VolumeStatus != nil || got[1].VolumeStatus == nil || got[1].VolumeStatus.Image.ImageRef != want {
			t.Errorf("%s: %+v", id, got)
		}
	}
	in.VolumeImages = map[string]string{"image": "sha256:1"}
	in.Pod = pod.DeepCopy()
	in.Pod.Status = Status(in)
	in.VolumeImages = nil
	if got := mounts(); got[1].VolumeStatus == nil || got[1].VolumeStatus.Image.ImageRef != "sha256:1" {
		t.Errorf("after a restart: %+v", got)
	}
}

package runtimeconfig

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/kubelet/pods/lifecycle"
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
		return v1.Volume{Name: name,
			VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name, ReadOnly: readOnly}}}
	}
	pod := podWith(v1.RestartPolicyAlways, "c")
	pod.Spec.Volumes = []v1.Volume{claim("rw", false), claim("ro", true), claim("disk", false), claim("frozen", true),
		{Name: "image", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "example.org/x:1"}}}}
	c := &pod.Spec.Containers[0]
	c.VolumeMounts = []v1.VolumeMount{{Name: "rw", MountPath: "/rw"}, {Name: "ro", MountPath: "/ro"},
		{Name: "image", MountPath: "/image", SubPath: "part"}}
	c.VolumeDevices = []v1.VolumeDevice{{Name: "disk", DevicePath: "/dev/xvda"},
		{Name: "frozen", DevicePath: "/dev/xvdb"}}
	in := Input{Start: lifecycle.Start{Container: c},
		Paths: map[string]string{"rw": "/host/rw", "ro": "/host/ro", "disk": "/dev/a", "frozen": "/dev/b",
			"image": "sha256:1"}}
	mounts, err := (&Builder{Volumes: labelled{"rw"}}).mounts(pod, c, in, nil)
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
	if b := blocks[0]; b.HostPath != "/dev/a" || b.ContainerPath != "/dev/xvda" || b.Permissions != "mrw" ||
		blocks[1].Permissions != "r" {
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
		c.VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"},
			{Name: "v", MountPath: "/part", SubPath: "part"}}
		in := Input{Start: lifecycle.Start{Container: c}, Paths: map[string]string{"v": "/host/v"}}
		mounts, err := (&Builder{Volumes: labelled{}}).mounts(pod, c, in, nil)
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

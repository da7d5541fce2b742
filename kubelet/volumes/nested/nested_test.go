package nested

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestMountpoints(t *testing.T) {
	at := func(volume, path string) v1.VolumeMount { return v1.VolumeMount{Name: volume, MountPath: path} }
	part := func(m v1.VolumeMount, sub string) v1.VolumeMount { m.SubPath = sub; return m }
	for name, test := range map[string]struct {
		mounts []v1.VolumeMount
		want   []string
	}{
		"beside": {[]v1.VolumeMount{at("v", "/etc/a"), at("w", "/etc/ab"), at("x", "/etc")}, nil},
		"below":  {[]v1.VolumeMount{at("w", "/etc/a/b"), at("v", "/etc/a")}, []string{"b"}},
		"some levels below": {[]v1.VolumeMount{at("v", "/etc/a/"), at("w", "/etc/a//b/../c/d")},
			[]string{"c/d"}},
		"inside each other": {
			[]v1.VolumeMount{at("v", "/a"), at("x", "/a/b/c"), at("w", "/a/b"), at("y", "/a/bc")}, []string{"b", "bc"}},
		"in itself": {[]v1.VolumeMount{at("v", "/a"), at("v", "/a/b")}, []string{"b"}},
		"mounted twice": {[]v1.VolumeMount{at("v", "/a"), at("w", "/a/b"), at("v", "/c"), at("x", "/c/b")},
			[]string{"b"}},
		"everywhere": {[]v1.VolumeMount{at("v", "/"), at("w", "/etc")}, []string{"etc"}},
		"relative":   {[]v1.VolumeMount{at("v", "a"), at("w", "a/b")}, []string{"b"}},
		"below a part": {[]v1.VolumeMount{part(at("v", "/a"), "sub"), at("w", "/a/b")},
			[]string{"sub/b"}},
		"a part below":               {[]v1.VolumeMount{at("v", "/a"), part(at("w", "/a/b"), "sub")}, []string{"b"}},
		"a name of the volume's own": {[]v1.VolumeMount{at("v", "/a"), at("w", "/a/..data/b")}, nil},
	} {
		pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{VolumeMounts: test.mounts}}}}
		if got := Mountpoints(pod, "v"); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, not %q", name, got, test.want)
		}
	}
	// Mounts of other containers are not inside each other.
	pod := &v1.Pod{Spec: v1.PodSpec{
		InitContainers: []v1.Container{{VolumeMounts: []v1.VolumeMount{at("v", "/a"), at("w", "/a/init")}}},
		Containers:     []v1.Container{{VolumeMounts: []v1.VolumeMount{at("v", "/b"), at("w", "/a/other")}}},
		EphemeralContainers: []v1.EphemeralContainer{
			{EphemeralContainerCommon: v1.EphemeralContainerCommon{
				VolumeMounts: []v1.VolumeMount{at("v", "/a"), at("w", "/a/debug")}}}},
	}}
	if got, want := Mountpoints(pod, "v"), []string{"debug", "init"}; !slices.Equal(got, want) {
		t.Errorf("of several containers: %q, not %q", got, want)
	}
}

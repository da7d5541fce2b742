package csi

import (
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/cluster-test/csidriver"
)

// labelled is a pod whose container has the SELinux level and mounts the volume.
func labelled(uid types.UID, level, claim string) *v1.Pod {
	p := podOf(uid, claim)
	p.Spec.SecurityContext = &v1.PodSecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: level}}
	p.Spec.Containers = []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: claim, MountPath: "/v"}}}}
	return p
}

func onSELinux(t *testing.T, mounts bool) *machine {
	t.Helper()
	spec := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{
		SELinuxMount: &mounts, FSGroupPolicy: new(storagev1.NoneFSGroupPolicy),
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
	}}
	m := newMachine(t, csidriver.Config{}, append(volume("pv", func(pv *v1.PersistentVolume) {
		pv.Spec.MountOptions = []string{"noatime"}
	}), runtime.Object(spec))...)
	m.fileLabel = func(o *v1.SELinuxOptions) (string, error) {
		return "system_u:object_r:container_file_t:" + o.Level, nil
	}
	m.restartKubelet()
	if err := m.driver.Add("handle-of-pv", false); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *machine) flags() (stage, publish []string) {
	return last[*csipb.NodeStageVolumeRequest](m.t, m.driver, "NodeStageVolume").VolumeCapability.GetMount().MountFlags,
		last[*csipb.NodePublishVolumeRequest](m.t, m.driver, "NodePublishVolume").VolumeCapability.GetMount().MountFlags
}

// TestSELinuxMount: a driver with seLinuxMount mounts a volume with the label of the pod. A pod
// with another label waits for the first one to go, also across a restart of the kubelet.
func TestSELinuxMount(t *testing.T) {
	m := onSELinux(t, true)
	a, same, other := labelled("a", "s0:c1,c2", "pv"), labelled("same", "s0:c1,c2", "pv"),
		labelled("other", "s0:c3,c4", "pv")
	m.mount(a)
	want := []string{"noatime", `context="system_u:object_r:container_file_t:s0:c1,c2"`}
	if stage, publish := m.flags(); !slices.Equal(stage, want) || !slices.Equal(publish, want) {
		t.Errorf("staged with %q, published with %q, want %q", stage, publish, want)
	}
	refused := func() {
		t.Helper()
		_, _, err := m.files.Mount(t.Context(), other)
		if err == nil || !strings.Contains(err.Error(), "conflicting SELinux labels of volume pv") {
			t.Errorf("another label beside it: %v", err)
		}
	}
	refused()
	m.mount(same)
	m.restartKubelet()
	m.mount(a)
	refused()
	m.unmount("a")
	refused()
	m.unmount("same")
	m.mount(other)
	want[1] = `context="system_u:object_r:container_file_t:s0:c3,c4"`
	if stage, publish := m.flags(); !slices.Equal(stage, want) || !slices.Equal(publish, want) {
		t.Errorf("then staged with %q, published with %q, want %q", stage, publish, want)
	}
	m.unmount("other")
	m.clean()
}

// TestSELinuxMountIsAskedFor: the runtime labels the files of a volume where the driver does not
// take the mount option, where the pod does not want it and where it has no level of its own.
func TestSELinuxMountIsAskedFor(t *testing.T) {
	for _, c := range []struct {
		name   string
		mounts bool
		change func(*v1.Pod)
		err    string
	}{
		{name: "a driver without it", change: func(*v1.Pod) {}},
		{name: "policy Recursive", mounts: true, change: func(p *v1.Pod) {
			p.Spec.SecurityContext.SELinuxChangePolicy = new(v1.SELinuxChangePolicyRecursive)
		}},
		{name: "no level", mounts: true, change: func(p *v1.Pod) { p.Spec.SecurityContext.SELinuxOptions.Level = "" }},
		{name: "no options", mounts: true, change: func(p *v1.Pod) { p.Spec.SecurityContext = nil }},
		{name: "no container uses it", mounts: true,
			change: func(p *v1.Pod) { p.Spec.Containers[0].VolumeMounts = nil }},
		{name: "two labels", mounts: true, err: "multiple SELinux labels found", change: func(p *v1.Pod) {
			second := p.Spec.Containers[0].DeepCopy()
			second.Name, second.SecurityContext = "d",
				&v1.SecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: "s0:c9"}}
			p.Spec.Containers = append(p.Spec.Containers, *second)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := onSELinux(t, c.mounts)
			pod := labelled("a", "s0:c1,c2", "pv")
			c.change(pod)
			_, _, err := m.files.Mount(t.Context(), pod)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%v", err)
				}
			} else if err != nil {
				t.Fatal(err)
			} else if stage, publish := m.flags(); len(stage) != 1 || len(publish) != 1 {
				t.Errorf("staged with %q, published with %q", stage, publish)
			}
			m.unmount("a")
			m.clean()
		})
	}
}

package kubelet_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/await"
)

// TestRestartMidway restarts the kubelet and containerd in the middle of their work for pods. A
// deletion goes on: as in upstream's kubelet, the preStop hook runs again from its beginning, and
// the container is stopped after it. A pod that was Ready stays Ready, and its startup probe, which
// it has passed, is not run again.
func TestRestartMidway(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	f := newFixture(t)
	stop := f.start()
	out := filepath.Join(f.dataDir, "out")
	if err := os.Mkdir(out, 0o777); err != nil {
		t.Fatal(err)
	}
	touch := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(out, name), nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	written := func(name string) string {
		data, err := os.ReadFile(filepath.Join(out, name))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return string(data)
	}
	shared := func(pod *v1.Pod) *v1.Container {
		pod.Spec.Volumes = append(pod.Spec.Volumes,
			v1.Volume{Name: "out", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: out}}})
		c := &pod.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: "out", MountPath: "/out"})
		return c
	}
	command := func(script string) v1.ProbeHandler {
		return v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"/bin/sh", "-c", script}}}
	}

	leaving := script("leaving", v1.RestartPolicyAlways, nil,
		"trap 'echo asked >> /out/asked; exit 0' TERM; while :; do sleep 0.05; done")
	shared(leaving).Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{
		Exec: command(
			"echo begun >> /out/hook; while [ ! -e /out/go-on ]; do sleep 0.05; done; echo ended >> /out/hook").Exec,
	}}
	steady := script("steady", v1.RestartPolicyAlways, nil, "while :; do sleep 1; done")
	c := shared(steady)
	c.StartupProbe = &v1.Probe{ProbeHandler: command("[ -e /out/started ]"), PeriodSeconds: 1, FailureThreshold: 1,
		TimeoutSeconds: 20, SuccessThreshold: 1}
	c.ReadinessProbe = &v1.Probe{ProbeHandler: command("echo asked >> /out/probe"), PeriodSeconds: 1,
		FailureThreshold: 1, TimeoutSeconds: 20, SuccessThreshold: 1}
	touch("started")
	f.create(leaving)
	f.create(steady)
	f.eventually("leaving", "ready", ready)
	f.eventually("steady", "ready", ready)

	f.deletePod("leaving", 120)
	await.True(t, "the hook has begun", func() bool { return written("hook") != "" })
	if err := os.Remove(filepath.Join(out, "started")); err != nil {
		t.Fatal(err)
	}
	changes, err := f.api.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	f.stopRuntime()
	asked := len(written("probe"))
	f.startRuntime()
	f.start()
	await.True(t, "the hook has begun again", func() bool { return strings.Count(written("hook"), "begun\n") == 2 })
	touch("go-on")
	await.True(t, "the pod is gone", func() bool { return f.get("leaving") == nil })
	if got := written("hook"); !strings.HasSuffix(got, "ended\n") {
		t.Errorf("the hook was cut short: %q", got)
	}
	if got := written("asked"); got != "asked\n" {
		t.Errorf("the container was asked to end %q, want once, after its hook", got)
	}

	const probes = 3
	await.True(t, "the probe is asked again",
		func() bool { return len(written("probe")) >= asked+probes*len("asked\n") })
	changes.Stop()
	for e := range changes.ResultChan() {
		if pod := e.Object.(*v1.Pod); pod.Name == "steady" && !ready(pod) {
			t.Errorf("a pod that was Ready, and is, had the conditions %+v", pod.Status.Conditions)
		}
	}
	if s := f.get("steady").Status.ContainerStatuses[0]; s.RestartCount != 0 || s.Started == nil || !*s.Started {
		t.Errorf("the container has %d restarts, and started is %v", s.RestartCount, s.Started)
	}
}

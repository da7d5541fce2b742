package kubelet_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/barque/barque/internal/needs"
)

// script is a pod whose containers run shell scripts: the host's own userland is mounted into them.
func script(name string, policy v1.RestartPolicy, init []string, scripts ...string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}}
	grace := int64(2)
	pod.Spec.RestartPolicy, pod.Spec.TerminationGracePeriodSeconds = policy, &grace
	dirs := []string{"/bin", "/lib", "/lib64", "/usr"}
	kind := v1.HostPathDirectory
	for i, dir := range dirs {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: fmt.Sprintf("h%d", i),
			VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: dir, Type: &kind}}})
	}
	container := func(name, text string) v1.Container {
		c := v1.Container{Name: name, Image: "barque.local/hello:1", ImagePullPolicy: v1.PullIfNotPresent,
			Command: []string{"/bin/sh", "-c", text}}
		for i, dir := range dirs {
			c.VolumeMounts = append(c.VolumeMounts,
				v1.VolumeMount{Name: fmt.Sprintf("h%d", i), MountPath: dir, ReadOnly: true})
		}
		return c
	}
	root := int64(0)
	pod.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: &root}
	for i, text := range init {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, container(fmt.Sprintf("i%d", i), text))
	}
	for i, text := range scripts {
		pod.Spec.Containers = append(pod.Spec.Containers, container(fmt.Sprintf("c%d", i), text))
	}
	return pod
}

func (f *fixture) log(pod *v1.Pod, container string, attempt int) string {
	path := filepath.Join(f.dataDir, "logs", "default_"+pod.Name+"_"+string(pod.UID), container,
		fmt.Sprintf("%d.log", attempt))
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for line := range strings.Lines(string(raw)) {
		if parts := strings.SplitN(line, " ", 4); len(parts) == 4 {
			b.WriteString(parts[3])
		}
	}
	return b.String()
}

func (f *fixture) events(name string) string {
	list, err := f.api.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range list.Items {
		if e.InvolvedObject.Name == name {
			fmt.Fprintf(&b, "%s %s: %s\n", e.Type, e.Reason, e.Message)
		}
	}
	return b.String()
}

func phaseIs(phase v1.PodPhase) func(*v1.Pod) bool {
	return func(p *v1.Pod) bool { return p != nil && p.Status.Phase == phase }
}

// TestFeatures runs pods that use a node's features, side by side on one node.
func TestFeatures(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	f := newFixture(t)
	ctx := context.Background()
	if _, err := f.api.CoreV1().ConfigMaps("default").Create(ctx, &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "conf", Namespace: "default"},
		Data:       map[string]string{"color": "blue", "size": "7"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.api.CoreV1().Secrets("default").Create(ctx, &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "key", Namespace: "default"},
		Data:       map[string][]byte{"token": []byte("s3cret")}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.start()

	t.Run("configuration", func(t *testing.T) {
		pod := script("config", v1.RestartPolicyNever, []string{"echo first > /shared/a"},
			`echo color=$COLOR all=$X_size me=$ME ip=$IP; stat -f -c %T /secret; cat /secret/token /shared/a /down/labels; stat -L -c %a /secret/token;
			cat /sub; ls -A /conf; touch /conf/mine && echo wrote; cat /conf/below/a && echo below; echo $(hostname); grep -c config /etc/hosts; echo said > /dev/termination-log;
			while [ "$(cat /conf/color)" = blue ]; do sleep 0.1; done; echo turned $(cat /conf/color); ls /conf/below; exit 3`)
		mode := int32(0o400)
		pod.Spec.Volumes = append(pod.Spec.Volumes,
			v1.Volume{Name: "shared", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
			v1.Volume{Name: "conf",
				VolumeSource: v1.VolumeSource{
					ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "conf"}}}},
			v1.Volume{Name: "secret",
				VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "key", DefaultMode: &mode}}},
			v1.Volume{Name: "down", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{
				Items: []v1.DownwardAPIVolumeFile{
					{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}}})
		pod.Spec.InitContainers[0].VolumeMounts = append(pod.Spec.InitContainers[0].VolumeMounts,
			v1.VolumeMount{Name: "shared", MountPath: "/shared"})
		c := &pod.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: "shared", MountPath: "/shared"},
			v1.VolumeMount{Name: "conf", MountPath: "/conf"}, v1.VolumeMount{Name: "shared", MountPath: "/conf/below"},
			v1.VolumeMount{Name: "secret", MountPath: "/secret"},
			v1.VolumeMount{Name: "down", MountPath: "/down"},
			v1.VolumeMount{Name: "conf", MountPath: "/sub", SubPath: "size"})
		c.Env = []v1.EnvVar{
			{Name: "COLOR",
				ValueFrom: &v1.EnvVarSource{
					ConfigMapKeyRef: &v1.ConfigMapKeySelector{
						LocalObjectReference: v1.LocalObjectReference{Name: "conf"}, Key: "color"}}},
			{Name: "ME", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
			{Name: "IP", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
		}
		c.EnvFrom = []v1.EnvFromSource{
			{Prefix: "X_",
				ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "conf"}}}}
		made := f.create(pod)
		f.eventually("config", "running", phaseIs(v1.PodRunning))
		conf, err := f.api.CoreV1().ConfigMaps("default").Get(ctx, "conf", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		conf = conf.DeepCopy()
		conf.Data["color"] = "green"
		if _, err := f.api.CoreV1().ConfigMaps("default").Update(ctx, conf, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		done := f.eventually("config", "failed", phaseIs(v1.PodFailed))
		said := f.log(made, "c0", 0)
		for _, want := range []string{"color=blue all=7 me=config ip=10.98.0.", "tmpfs", "s3cret", "first\nbelow\n",
			`app="config"`, "400", "7", "turned green\na\n"} {
			if !strings.Contains(said, want) {
				t.Errorf("the log lacks %q:\n%s", want, said)
			}
		}
		if strings.Contains(said, "wrote") {
			t.Errorf("the container could write into its ConfigMap:\n%s", said)
		}
		end := done.Status.ContainerStatuses[0].State.Terminated
		if end == nil || end.ExitCode != 3 || end.Reason != "Error" || end.Message != "said\n" {
			t.Errorf("ended as %+v", end)
		}
		if init := done.Status.InitContainerStatuses[0]; !init.Ready || init.State.Terminated.Reason != "Completed" {
			t.Errorf("init container: %+v", init)
		}
	})

	t.Run("crash loop", func(t *testing.T) {
		made := f.create(script("crash", v1.RestartPolicyAlways, nil, "echo attempt; exit 5"))
		pod := f.eventually("crash", "backing off", func(p *v1.Pod) bool {
			w := p.Status.ContainerStatuses
			return len(w) == 1 && w[0].State.Waiting != nil && w[0].State.Waiting.Reason == "CrashLoopBackOff"
		})
		s := pod.Status.ContainerStatuses[0]
		if s.RestartCount < 1 || s.LastTerminationState.Terminated == nil ||
			s.LastTerminationState.Terminated.ExitCode != 5 {
			t.Errorf("status: %+v", s)
		}
		if pod.Status.Phase != v1.PodRunning {
			t.Errorf("phase %s, want Running", pod.Status.Phase)
		}
		if got := f.log(made, "c0", int(s.RestartCount)); got != "attempt\n" {
			t.Errorf("log of the last attempt: %q", got)
		}
		f.deletePod("crash", 1)
		f.eventually("crash", "gone", func(p *v1.Pod) bool { return p == nil })
	})

	t.Run("image that is not there", func(t *testing.T) {
		pod := script("pull", v1.RestartPolicyAlways, nil, "true")
		pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = "barque.local/none:1", v1.PullNever
		f.create(pod)
		f.eventually("pull", "refused", func(p *v1.Pod) bool {
			s := p.Status.ContainerStatuses
			return len(s) == 1 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "ErrImageNeverPull"
		})
		bad := script("badname", v1.RestartPolicyAlways, nil, "true")
		bad.Spec.Containers[0].Image = "Not An Image"
		f.create(bad)
		f.eventually("badname", "refused", func(p *v1.Pod) bool {
			s := p.Status.ContainerStatuses
			return len(s) == 1 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "InvalidImageName"
		})
	})

	t.Run("missing configuration", func(t *testing.T) {
		pod := script("missing", v1.RestartPolicyNever, nil, "echo got $V")
		pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "V", ValueFrom: &v1.EnvVarSource{
			SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "later"},
				Key: "k"}}}}
		made := f.create(pod)
		f.eventually("missing", "waiting for its secret", func(p *v1.Pod) bool {
			s := p.Status.ContainerStatuses
			return len(s) == 1 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "CreateContainerConfigError"
		})
		if _, err := f.api.CoreV1().Secrets("default").Create(ctx, &v1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "later", Namespace: "default"},
			Data:       map[string][]byte{"k": []byte("it")}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.eventually("missing", "done", phaseIs(v1.PodSucceeded))
		if got := f.log(made, "c0", 0); got != "got it\n" {
			t.Errorf("log: %q", got)
		}
	})

	t.Run("probes", func(t *testing.T) {
		pod := script("probed", v1.RestartPolicyAlways, nil, "touch /tmp/alive; sleep 1000 & trap 'exit 0' TERM; wait")
		c := &pod.Spec.Containers[0]
		pod.Spec.Volumes = append(pod.Spec.Volumes,
			v1.Volume{Name: "tmp",
				VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}})
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: "tmp", MountPath: "/tmp"})
		exec := func(command ...string) *v1.Probe {
			// A busy machine may take more than the second that is the default.
			return &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: command}}, PeriodSeconds: 1,
				FailureThreshold: 1, TimeoutSeconds: 30}
		}
		c.StartupProbe = exec("/bin/sh", "-c", "test -e /tmp/alive")
		c.StartupProbe.FailureThreshold = 60 // it runs from the container's start, before the script has done anything
		c.LivenessProbe = exec("/bin/sh", "-c", "test ! -e /tmp/ill || { rm /tmp/ill; exit 1; }")
		c.ReadinessProbe = exec("/bin/sh", "-c", "test -e /tmp/open")
		made := f.create(pod)
		f.eventually("probed", "started", func(p *v1.Pod) bool {
			s := p.Status.ContainerStatuses
			return len(s) == 1 && s[0].Started != nil && *s[0].Started && !s[0].Ready
		})
		dir := filepath.Join(f.dataDir, "kubelet", "pods", string(made.UID), "volumes", "kubernetes.io~empty-dir",
			"tmp")
		if err := os.WriteFile(filepath.Join(dir, "open"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		f.eventually("probed", "ready", ready)
		if err := os.WriteFile(filepath.Join(dir, "ill"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		f.eventually("probed", "restarted",
			func(p *v1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount == 1 && ready(p) })
		if got := f.events("probed"); !strings.Contains(got, "failed liveness probe, will be restarted") ||
			!strings.Contains(got, "Warning Unhealthy") {
			t.Errorf("events:\n%s", got)
		}
	})

	t.Run("http probe and hooks", func(t *testing.T) {
		pod := hello("hooked")
		c := &pod.Spec.Containers[0]
		c.Ports = []v1.ContainerPort{{Name: "web", ContainerPort: 8080}}
		c.ReadinessProbe = &v1.Probe{PeriodSeconds: 1,
			ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/healthz", Port: intstr.FromString("web")}}}
		c.Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 1}},
			PreStop: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 1}}}
		f.create(pod)
		f.eventually("hooked", "ready", ready)
		began := time.Now()
		f.deletePod("hooked", 600) // it ends by itself, after its hook
		f.eventually("hooked", "gone", func(p *v1.Pod) bool { return p == nil })
		took := time.Since(began)
		if took < time.Second {
			t.Errorf("the end took %s, want the hook's second at least", took)
		}
		t.Logf("the end took %s", took)
	})

	t.Run("sidecar", func(t *testing.T) {
		// The other container ends once the sidecar listens to its end, for which it has the time
		// of a busy machine.
		pod := script("side", v1.RestartPolicyNever,
			[]string{"trap 'echo bye; exit 0' TERM; touch /shared/up; while true; do sleep 0.1; done"},
			"while [ ! -e /shared/up ]; do sleep 0.1; done")
		always, grace := v1.ContainerRestartPolicyAlways, int64(60)
		pod.Spec.InitContainers[0].RestartPolicy, pod.Spec.TerminationGracePeriodSeconds = &always, &grace
		pod.Spec.Volumes = append(pod.Spec.Volumes,
			v1.Volume{Name: "shared", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
		for _, c := range []*v1.Container{&pod.Spec.InitContainers[0], &pod.Spec.Containers[0]} {
			c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: "shared", MountPath: "/shared"})
		}
		f.create(pod)
		done := f.eventually("side", "done", phaseIs(v1.PodSucceeded))
		if end := done.Status.InitContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 0 {
			t.Errorf("the pod is done, but its sidecar is %+v", done.Status.InitContainerStatuses[0].State)
		}
	})

	t.Run("out of memory", func(t *testing.T) {
		// The runtime gets a container's end and its reason in two messages, and may report the end
		// without its reason. A restarted container runs out of memory again, so that the reason
		// shows sooner or later.
		pod := script("oom", v1.RestartPolicyOnFailure, nil, "x=0123456789; while true; do x=$x$x; done")
		pod.Spec.Containers[0].Resources = v1.ResourceRequirements{
			Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("20Mi"),
				v1.ResourceCPU: resource.MustParse("500m")},
			Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse("20Mi"),
				v1.ResourceCPU: resource.MustParse("500m")}}
		f.create(pod)
		done := f.eventually("oom", "ended for its memory", func(p *v1.Pod) bool {
			return p != nil && len(p.Status.ContainerStatuses) == 1 && slices.ContainsFunc(
				[]v1.ContainerState{p.Status.ContainerStatuses[0].State,
					p.Status.ContainerStatuses[0].LastTerminationState},
				func(s v1.ContainerState) bool {
					return s.Terminated != nil && s.Terminated.Reason == "OOMKilled" && s.Terminated.ExitCode == 137
				})
		})
		if done.Status.QOSClass != v1.PodQOSGuaranteed {
			t.Errorf("QoS class %s", done.Status.QOSClass)
		}
	})

	t.Run("deadline", func(t *testing.T) {
		deadline := int64(1)
		limited := script("late", v1.RestartPolicyAlways, nil, "sleep 1000")
		limited.Spec.ActiveDeadlineSeconds = &deadline
		f.create(limited)
		done := f.eventually("late", "failed", phaseIs(v1.PodFailed))
		if done.Status.Reason != "DeadlineExceeded" {
			t.Errorf("reason %q", done.Status.Reason)
		}
	})

	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		needs.Missing(t, "cgroup v1, whose paths it knows", "containers that are killed by their cgroup")
	}
	t.Run("killed container", func(t *testing.T) {
		f.create(hello("victim"))
		made := f.eventually("victim", "ready", ready)
		_, id, _ := strings.Cut(made.Status.ContainerStatuses[0].ContainerID, "://")
		if err := killAllIn(f.groupOf(made) + "/" + id); err != nil {
			t.Fatalf("kill the container: %v", err)
		}
		again := f.eventually("victim", "back", back)
		if last := again.Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil ||
			last.ExitCode != 137 {
			t.Errorf("ended as %+v", last)
		}
	})

	// The container's end may show in two ways: it may be started once more before the runtime has
	// noticed that its sandbox is gone.
	t.Run("killed sandbox", func(t *testing.T) {
		f.create(hello("orphan"))
		made := f.eventually("orphan", "ready", ready)
		if err := killAllIn(f.groupOf(made)); err != nil {
			t.Fatalf("kill the pod's processes: %v", err)
		}
		f.eventually("orphan", "back", back)
	})
}

// groupOf is the cgroup of the pod; each container's is below it, named by its ID.
func (f *fixture) groupOf(pod *v1.Pod) string {
	return "/sys/fs/cgroup/memory" + f.cgroup + "/kubepods/besteffort/pod" + string(pod.UID)
}

// back reports whether a pod is ready after a restart.
func back(p *v1.Pod) bool { return ready(p) && p.Status.ContainerStatuses[0].RestartCount > 0 }

// killAllIn kills all processes in a cgroup and below, of containers and of the sandbox. A cgroup
// may be gone meanwhile because its processes ended with others.
func killAllIn(group string) error {
	if _, err := os.Stat(group); err != nil {
		return err
	}
	gone := func(err error) bool {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ESRCH)
	}
	return filepath.WalkDir(group, func(path string, e fs.DirEntry, err error) error {
		if gone(err) {
			return nil
		}
		if err != nil || e.Name() != "cgroup.procs" {
			return err
		}
		raw, err := os.ReadFile(path)
		if gone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		for pid := range strings.FieldsSeq(string(raw)) {
			n, err := strconv.Atoi(pid)
			if err != nil {
				return err
			}
			if err := syscall.Kill(n, syscall.SIGKILL); err != nil && !gone(err) {
				return err
			}
		}
		return nil
	})
}

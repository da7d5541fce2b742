package kubelet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/barque/barque/internal/apart"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/internal/procstat"
	"github.com/barque/barque/kubelet/bundle"
	"github.com/barque/barque/kubelet/cri"
)

// The runtime's calls that create a pod, and those that end it.
var (
	makingCalls = []string{"RunPodSandbox", "CreateContainer", "StartContainer"}
	endingCalls = []string{"StopContainer", "StopPodSandbox", "RemovePodSandbox"}
)

// TestKills kills the kubelet, containerd, and both, before, during and after each call that makes
// or ends a pod. No container runs twice, none is lost, and nothing is left of a pod that has
// ended.
func TestKills(t *testing.T) {
	needs.AllTests(t)
	const untested = "kill -9 of the kubelet and of containerd at each step of a pod's life"
	if _, err := bundle.Open(); errors.Is(err, bundle.ErrNotBundled) {
		needs.Missing(t, "the node components (run `make bundle`)", untested)
	}
	if !apart.Run(t, apart.Mounts, 30*time.Minute, untested) {
		return
	}
	k := newKills(t)
	moments, victims, rounds := []moment{before, during, after}, []string{"kubelet", "containerd", "both"}, 2
	for round := range rounds {
		for _, calls := range [][]string{makingCalls, endingCalls} {
			for _, call := range calls {
				for _, at := range moments {
					for _, who := range victims {
						t.Run(fmt.Sprintf("%d/%s/%s/%s", round, call, at, who), func(t *testing.T) {
							k.t = t
							k.life(fmt.Sprintf("p%d", k.count), call, at, who)
						})
						k.count++
					}
				}
			}
		}
	}
}

// kills is a node whose kubelet is a process.
type kills struct {
	*fixture
	count   int
	kubelet *victim
	relay   *relay
}

func newKills(t *testing.T) *kills {
	f := newFixture(t)
	k := &kills{fixture: f}
	relay, socket := startRelay(t, f.dataDir, f.socket)
	k.relay = relay
	k.kubelet = startVictim(t,
		killableConfig{API: serveAPI(t, f.api), Runtime: socket, RootDir: filepath.Join(f.dataDir, "kubelet"),
			LogDir: filepath.Join(f.dataDir, "logs"), CgroupRoot: f.cgroup})
	return k
}

// witness runs until a signal ends it. It records its starts in a directory of the host, and a
// second process of the same container.
const witness = `exec 9>/out/lock; flock -n 9 || echo another one runs >> /out/wrong; echo started >> /out/starts
trap 'exit 0' TERM; while :; do sleep 0.1 9>&-; done`

// life runs one pod, and kills a process during it.
func (k *kills) life(name, call string, at moment, who string) {
	ends := strings.HasPrefix(call, "Stop") || strings.HasPrefix(call, "Remove")
	outs := []string{filepath.Join(k.dataDir, "out", name, "once"), filepath.Join(k.dataDir, "out", name, "always")}
	pod := k.pod(name, outs)
	killed := make(chan error, 1)
	arm := func() {
		k.relay.arm(call, at, func() (gone bool) {
			var err error
			if who != "containerd" {
				k.kubelet.kill()
			}
			if who != "kubelet" {
				err = k.killContainerd()
			}
			killed <- err
			return who != "containerd"
		})
	}
	if !ends {
		arm()
	}
	k.create(pod)
	if !ends {
		if err := await.Value(k.t, "the kill", killed); err != nil {
			k.t.Fatal(err)
		}
	}
	made := k.eventually(name, "running", func(p *v1.Pod) bool {
		if p == nil || len(p.Status.ContainerStatuses) != 2 || p.Status.ContainerStatuses[1].State.Running == nil {
			return false
		}
		once := p.Status.ContainerStatuses[0].State
		return once.Running != nil || once.Terminated != nil
	})
	once := made.Status.ContainerStatuses[0]
	if once.State.Terminated != nil && (who == "kubelet" || ends) {
		k.t.Errorf("the container that runs once has ended: %+v", once.State.Terminated)
	}
	if once.State.Running != nil { // its status may be late
		await.True(k.t, "the container that runs once has said that it runs",
			func() bool { return k.starts(outs[0]) > 0 })
	}
	if starts := k.starts(outs[0]); starts > 1 {
		k.t.Errorf("the container that runs once has started %d times, and is %+v", starts, once.State)
	}
	await.True(k.t, "the other container has said that it runs", func() bool { return k.starts(outs[1]) > 0 })

	if ends {
		arm()
	}
	k.deletePod(name, 2)
	if ends {
		if err := await.Value(k.t, "the kill", killed); err != nil {
			k.t.Fatal(err)
		}
	}
	k.eventually(name, "gone", func(p *v1.Pod) bool { return p == nil })
	for _, out := range outs {
		if wrong, err := os.ReadFile(filepath.Join(out, "wrong")); err == nil {
			k.t.Errorf("%s: %s", out, wrong)
		}
	}
	if starts := k.starts(outs[0]); starts > 1 {
		k.t.Errorf("the container that runs once has started %d times in the end", starts)
	}
	await.NoError(k.t, "nothing of the pod is left", func(ctx context.Context) error { return k.left(ctx, made) })
}

// pod has a container that runs once and one that is started again, and a volume.
func (k *kills) pod(name string, outs []string) *v1.Pod {
	pod := script(name, v1.RestartPolicyAlways, nil, witness, witness)
	never := v1.ContainerRestartPolicyNever
	pod.Spec.Containers[0].RestartPolicy = &never
	pod.Spec.Volumes = append(pod.Spec.Volumes,
		v1.Volume{Name: "memory",
			VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}})
	for i, out := range outs {
		if err := os.MkdirAll(out, 0o755); err != nil {
			k.t.Fatal(err)
		}
		volume := fmt.Sprintf("out%d", i)
		pod.Spec.Volumes = append(pod.Spec.Volumes,
			v1.Volume{Name: volume, VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: out}}})
		c := &pod.Spec.Containers[i]
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: volume, MountPath: "/out"},
			v1.VolumeMount{Name: "memory", MountPath: "/memory"})
	}
	return pod
}

// starts returns how often a container has started.
func (k *kills) starts(out string) int {
	raw, err := os.ReadFile(filepath.Join(out, "starts"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.t.Fatal(err)
	}
	return bytes.Count(raw, []byte("\n"))
}

// left returns an error for remains of a deleted pod.
func (k *kills) left(ctx context.Context, pod *v1.Pod) error {
	uid := string(pod.UID)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	if bytes.Contains(mounts, []byte(uid)) {
		return errors.New("mounts are left")
	}
	for _, pattern := range []string{
		filepath.Join(k.dataDir, "kubelet/pods", uid), filepath.Join(k.dataDir, "logs", "*"+uid),
		"/sys/fs/cgroup/*" + k.cgroup + "/kubepods/*/pod" + uid, "/sys/fs/cgroup" + k.cgroup + "/kubepods/*/pod" + uid,
		filepath.Join(k.dataDir, "ipam/test", pod.Status.PodIP),
	} {
		if found, err := filepath.Glob(pattern); err != nil || len(found) > 0 {
			return fmt.Errorf("left: %v %w", found, err)
		}
	}
	runtime, err := cri.Dial(k.socket)
	if err != nil {
		return err
	}
	defer runtime.Close()
	boxes, err := runtime.ListPodSandboxes(ctx, nil)
	if err != nil {
		return err
	}
	containers, err := runtime.ListContainers(ctx, nil)
	if err != nil || len(boxes)+len(containers) > 0 {
		return fmt.Errorf("the runtime has %d sandboxes and %d containers: %w", len(boxes), len(containers), err)
	}
	all, err := procstat.All()
	if err != nil {
		return err
	}
	for _, pid := range all {
		if args, err := procstat.Args(pid); err == nil && len(args) > 0 &&
			strings.HasSuffix(args[0], "containerd-shim-runc-v2") &&
			strings.Contains(strings.Join(args, " "), k.dataDir) {
			return fmt.Errorf("a shim is left: %q", args)
		}
	}
	return nil
}

package kubelet_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
)

func sized(cpu, memory string) v1.ResourceRequirements {
	list := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
	return v1.ResourceRequirements{Requests: list, Limits: list.DeepCopy()}
}

// TestResources resizes a running container, refuses a resize that does not fit, and runs
// a static pod.
func TestResources(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	f := newFixture(t)
	f.settings.StaticPodPath = filepath.Join(f.dataDir, "manifests")
	if err := os.Mkdir(f.settings.StaticPodPath, 0o700); err != nil {
		t.Fatal(err)
	}
	// The API in memory gives no UIDs.
	if _, err := f.api.CoreV1().Nodes().Create(context.Background(),
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "node"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.api.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if pod, ok := action.(clienttesting.CreateAction).GetObject().(*v1.Pod); ok && pod.UID == "" {
			pod.UID = types.UID("mirror-" + pod.Name)
		}
		return false, nil, nil
	})
	manifest := filepath.Join(f.settings.StaticPodPath, "web.yaml")
	const text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - {name: web, image: 'barque.local/hello:1', imagePullPolicy: IfNotPresent}\n"
	if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	stop := f.start()

	pod := script("grows", v1.RestartPolicyAlways, nil, "while true; do sleep 1; done")
	pod.Generation = 1
	pod.Spec.Containers[0].Resources = sized("100m", "64Mi")
	f.create(pod)
	before := f.eventually("grows", "ready", ready)
	group := func(controller, file string) string {
		_, id, _ := strings.Cut(before.Status.ContainerStatuses[0].ContainerID, "://")
		raw, err := os.ReadFile(
			filepath.Join("/sys/fs/cgroup", controller, f.cgroup, "kubepods", "pod"+string(before.UID), id, file))
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(string(raw))
	}
	resize := func(cpu, memory string) {
		t.Helper()
		p := f.get("grows").DeepCopy()
		p.Generation++
		p.Spec.Containers[0].Resources = sized(cpu, memory)
		if _, err := f.api.CoreV1().Pods("default").Update(context.Background(), p,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		p = f.eventually("grows", "resized to "+cpu+" "+memory, func(p *v1.Pod) bool {
			r := p.Status.ContainerStatuses[0].Resources
			for _, c := range p.Status.Conditions {
				if c.Type == v1.PodResizeInProgress || c.Type == v1.PodResizePending {
					return false
				}
			}
			return r != nil && r.Limits.Cpu().String() == cpu && r.Limits.Memory().String() == memory &&
				p.Status.ObservedGeneration == p.Generation
		})
		if s := p.Status.ContainerStatuses[0]; s.RestartCount != 0 ||
			s.ContainerID != before.Status.ContainerStatuses[0].ContainerID {
			t.Errorf("it was restarted: %+v", s)
		}
		if _, err := os.Stat("/sys/fs/cgroup/cpu"); err == nil {
			t.Logf("%s %s: quota %s, limit %s", cpu, memory, group("cpu", "cpu.cfs_quota_us"),
				group("memory", "memory.limit_in_bytes"))
		} else {
			t.Logf("%s %s: %s, limit %s", cpu, memory, group("", "cpu.max"), group("", "memory.max"))
		}
	}
	resize("300m", "128Mi")
	if _, err := os.Stat("/sys/fs/cgroup/cpu"); err == nil {
		if quota, limit := group("cpu", "cpu.cfs_quota_us"),
			group("memory", "memory.limit_in_bytes"); quota != "30000" || limit != "134217728" {
			t.Errorf("the kernel has %s and %s", quota, limit)
		}
	}
	stop()
	stop = f.start()
	resize("200m", "96Mi")
	for _, want := range []string{"ResizeStarted", "ResizeCompleted"} {
		if !strings.Contains(f.events("grows"), want) {
			t.Errorf("no event %s in %s", want, f.events("grows"))
		}
	}

	large := hello("large")
	large.Spec.Containers[0].Resources = sized("10000", "64Mi")
	f.create(large)
	if p := f.eventually("large", "refused", phaseIs(v1.PodFailed)); p.Status.Reason != "OutOfcpu" {
		t.Errorf("refused for %s: %s", p.Status.Reason, p.Status.Message)
	}

	f.eventually("web-n1", "ready", ready)
	if err := os.Remove(manifest); err != nil {
		t.Fatal(err)
	}
	f.eventually("web-n1", "gone", func(p *v1.Pod) bool { return p == nil })
	f.deletePod("grows", 0)
	f.eventually("grows", "gone", func(p *v1.Pod) bool { return p == nil })
	stop()
}

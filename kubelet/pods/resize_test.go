package pods_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/cri"
	"github.com/barque/barque/kubelet/cri/fake"
)

func resources(cpu, memory string) v1.ResourceRequirements {
	list := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
	return v1.ResourceRequirements{Requests: list, Limits: list.DeepCopy()}
}

func sized(name, cpu, memory string) *v1.Pod {
	pod := appPod(v1.RestartPolicyAlways)
	pod.Name, pod.UID = name, types.UID("u-"+name)
	pod.Spec.Containers[0].Resources = resources(cpu, memory)
	return pod
}

func resized(pod *v1.Pod, cpu, memory string) *v1.Pod {
	pod = pod.DeepCopy()
	pod.Generation++
	pod.Spec.Containers[0].Resources = resources(cpu, memory)
	return pod
}

func conditionOf(s v1.PodStatus, kind v1.PodConditionType) *v1.PodCondition {
	i := slices.IndexFunc(s.Conditions, func(c v1.PodCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &s.Conditions[i]
}

// has returns the resources of a container by its pod's status.
func has(s v1.PodStatus) string {
	r := s.ContainerStatuses[0].Resources
	return r.Requests.Cpu().String() + " " + r.Limits.Memory().String() + " of " +
		s.ContainerStatuses[0].AllocatedResources.Cpu().String()
}

func TestResizeInPlace(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := sized("a", "1", "1Gi")
		w.manager.Update(pod)
		id := w.status(pod).ContainerStatuses[0].ContainerID
		pod = resized(pod, "2", "2Gi")
		w.manager.Update(pod)
		s := w.status(pod)
		if has(s) != "2 2Gi of 2" || s.ContainerStatuses[0].ContainerID != id || s.ObservedGeneration != 2 {
			t.Errorf("after the resize: %s, %+v", has(s), s)
		}
		if conditionOf(s, v1.PodResizeInProgress) != nil || conditionOf(s, v1.PodResizePending) != nil {
			t.Errorf("conditions stay: %+v", s.Conditions)
		}
		for _, want := range []string{"Normal ResizeStarted Pod resize started: {",
			"Normal ResizeCompleted Pod resize completed: {", `"generation":2}`} {
			if !strings.Contains(w.events(), want) {
				t.Errorf("no event %q in %s", want, w.events())
			}
		}
	})
}

func TestResizeByRestart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := sized("a", "1", "1Gi")
		pod.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{
			{ResourceName: v1.ResourceCPU, RestartPolicy: v1.NotRequired},
			{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer}}
		w.manager.Update(pod)
		w.status(pod)
		pod = resized(pod, "2", "1Gi")
		w.manager.Update(pod)
		if s := w.status(pod); has(s) != "2 1Gi of 2" || s.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("more CPU: %s, %+v", has(s), s.ContainerStatuses)
		}
		pod = resized(pod, "2", "512Mi")
		w.manager.Update(pod)
		s := w.status(pod)
		if has(s) != "2 512Mi of 2" || s.ContainerStatuses[0].RestartCount != 1 ||
			s.ContainerStatuses[0].State.Running == nil {
			t.Errorf("less memory: %s, %+v", has(s), s.ContainerStatuses)
		}
		if conditionOf(s, v1.PodResizeInProgress) != nil {
			t.Errorf("it goes on: %+v", s.Conditions)
		}
		if !strings.Contains(w.events(), "Killing Container main resize requires restart") {
			t.Errorf("events: %s", w.events())
		}
	})
}

func TestResizeThatDoesNotFit(t *testing.T) {
	dir := newWorld(t).dir
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, runtime: fake.New(image), statuses: map[types.UID]v1.PodStatus{},
			finished: map[types.UID]bool{}, dir: dir,
			allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"),
				v1.ResourceMemory: resource.MustParse("8Gi")}}
		w.start()
		defer func() { w.stop() }()
		a, b := sized("a", "2", "1Gi"), sized("b", "1", "1Gi")
		w.manager.Update(a)
		w.status(a)
		w.manager.Update(b)
		w.status(b)
		late := sized("late", "2", "1Gi")
		w.manager.Update(late)
		if s := w.status(late); s.Phase != v1.PodFailed || s.Reason != "OutOfcpu" || len(s.ContainerStatuses) > 0 ||
			s.Message != "Pod was rejected: Node didn't have enough resource: cpu, requested: 2000, used: 3000, capacity: 4000" {
			t.Errorf("a pod too many: %s %s %q", s.Phase, s.Reason, s.Message)
		}
		b = resized(b, "3", "1Gi")
		w.manager.Update(b)
		s := w.status(b)
		c := conditionOf(s, v1.PodResizePending)
		if c == nil || c.Reason != v1.PodReasonDeferred ||
			c.Message != "Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000" ||
			c.ObservedGeneration != 2 || has(s) != "1 1Gi of 1" {
			t.Errorf("a resize that must wait: %+v, %s", c, has(s))
		}
		// A new process neither refuses running pods nor allocates resources that do not fit.
		w.stop()
		w.launch()
		b.Status = s
		w.manager.Update(b)
		if s = w.status(b); has(s) != "1 1Gi of 1" || conditionOf(s, v1.PodResizePending) == nil {
			t.Errorf("after a restart, before the other pod is known: %s %+v", has(s), s.Conditions)
		}
		w.manager.Update(a)
		w.manager.Synced()
		if s = w.status(b); s.Phase != v1.PodRunning || has(s) != "1 1Gi of 1" ||
			conditionOf(s, v1.PodResizePending) == nil {
			t.Errorf("after a restart: %+v", s)
		}
		w.manager.Update(deleted(a, 0))
		w.done(a)
		if s = w.status(b); has(s) != "3 1Gi of 3" || conditionOf(s, v1.PodResizePending) != nil {
			t.Errorf("when there is room: %s %+v", has(s), s.Conditions)
		}
		b = resized(b, "5", "1Gi")
		w.manager.Update(b)
		c = conditionOf(w.status(b), v1.PodResizePending)
		if c == nil || c.Reason != v1.PodReasonInfeasible ||
			c.Message != "Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000" {
			t.Errorf("more than the node has: %+v", c)
		}
		if !strings.Contains(w.events(), "Warning ResizeInfeasible Pod resize Infeasible: {") ||
			strings.Count(w.events(), "Warning ResizeDeferred") != 1 {
			t.Errorf("events: %s", w.events())
		}
	})
}

func TestResizeBelowUsageIsRefused(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := sized("a", "1", "1Gi")
		w.manager.Update(pod)
		w.status(pod)
		w.runtime.Uses("main", 900<<20)
		w.usage.Store(900 << 20)
		pod = resized(pod, "1", "512Mi")
		w.manager.Update(pod)
		s := w.status(pod)
		c := conditionOf(s, v1.PodResizeInProgress)
		const want = `cannot decrease memory limits: [attempting to set pod memory limit (536870912) below current usage (943718400), attempting to set container "main" memory limit (536870912) below current usage (943718400)]`
		if c == nil || c.Reason != v1.PodReasonError || c.Message != want ||
			s.ContainerStatuses[0].Resources.Limits.Memory().String() != "1Gi" {
			t.Fatalf("%+v, %s", c, has(s))
		}
		w.runtime.Uses("main", 100<<20)
		w.usage.Store(100 << 20)
		time.Sleep(time.Minute)
		if s = w.status(pod); has(s) != "1 512Mi of 1" || conditionOf(s, v1.PodResizeInProgress) != nil {
			t.Errorf("when less is used: %s %+v", has(s), s.Conditions)
		}
		if n := strings.Count(w.events(), "ResizeError"); n != 1 {
			t.Errorf("the failure was told %d times", n)
		}
	})
}

func TestResizeThatTheRuntimeRefuses(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := sized("a", "1", "1Gi")
		w.manager.Update(pod)
		w.status(pod)
		w.runtime.Fail(func(call, _ string) error {
			if call == "UpdateContainerResources" {
				return errors.New("no")
			}
			return nil
		})
		pod = resized(pod, "2", "1Gi")
		w.manager.Update(pod)
		s := w.status(pod)
		if c := conditionOf(s, v1.PodResizeInProgress); c == nil || c.Reason != v1.PodReasonError ||
			has(s) != "1 1Gi of 2" {
			t.Errorf("%+v, %s", s.Conditions, has(s))
		}
		// A process that starts meanwhile goes on with it.
		w.stop()
		w.runtime.Fail(nil)
		pod.Status = s
		w.start(pod)
		if s = w.status(pod); has(s) != "2 1Gi of 2" || conditionOf(s, v1.PodResizeInProgress) != nil {
			t.Errorf("after a restart: %s %+v", has(s), s.Conditions)
		}
	})
}

// TestResizeTakenBackAfterAFailure: the runtime fails after it has changed the limits. The resize
// is taken back then, to the runtime's earlier limits.
func TestResizeTakenBackAfterAFailure(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := sized("a", "1", "1Gi")
		w.manager.Update(pod)
		id := strings.TrimPrefix(w.status(pod).ContainerStatuses[0].ContainerID, "fake://")
		pod = resized(pod, "2", "1Gi")
		w.manager.Update(pod)
		pod.Status = w.status(pod)
		w.runtime.Fail(func(call, _ string) error {
			if call != "UpdateContainerResources" {
				return nil
			}
			w.runtime.Fail(nil)
			four := &runtimeapi.LinuxContainerResources{CpuShares: 4096, CpuQuota: 400000, CpuPeriod: 100000,
				MemoryLimitInBytes: 1 << 30}
			if err := w.runtime.UpdateContainerResources(context.Background(), id, four); err != nil {
				t.Error(err)
			}
			return errors.New("it took too long")
		})
		next := resized(pod, "4", "1Gi")
		w.manager.Update(next)
		synctest.Wait()
		w.manager.Update(resized(next, "2", "1Gi"))
		s := w.status(pod)
		if r := w.enforced(s); r.CpuQuota != 200000 || r.CpuShares != 2048 {
			t.Errorf("taken back, the container has %+v", r)
		}
		if has(s) != "2 1Gi of 2" || conditionOf(s, v1.PodResizeInProgress) != nil {
			t.Errorf("%s, %+v", has(s), s.Conditions)
		}
	})
}

// TestAFirstResizeOutlivesTheProcess: the kubelet ends after it has allocated a first resize to a
// pod of an earlier version, and before the container is stopped for it. The next one stops it: the
// limits are not those of an upgrade.
func TestAFirstResizeOutlivesTheProcess(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := restartFor(appPod(v1.RestartPolicyAlways), v1.ResourceMemory)
		w.manager.Update(pod)
		pod.Status = w.status(pod)
		w.runtime.Annotate(strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "fake://"),
			cri.AnnotationMemoryRequest, "")
		w.runtime.Stubborn["main"] = true
		pod = resizedWhole(pod, "1", "1Gi")
		w.manager.Update(pod)
		pod.Status = w.status(pod)
		if s := pod.Status.ContainerStatuses[0]; s.RestartCount != 0 ||
			conditionOf(pod.Status, v1.PodResizeInProgress) == nil {
			t.Fatalf("%+v", pod.Status)
		}
		w.stop()
		w.runtime.Stubborn["main"] = false
		w.start(pod)
		if s := w.status(pod); s.ContainerStatuses[0].RestartCount != 1 || w.enforced(s).MemoryLimitInBytes != 1<<30 {
			t.Errorf("after a restart of the kubelet: %+v, enforced %+v", s.ContainerStatuses[0], w.enforced(s))
		}
	})
}

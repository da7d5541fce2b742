package pods_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/admission"
	"github.com/barque/barque/kubelet/cri/fake"
	"github.com/barque/barque/kubelet/pods/lifecycle"
)

// whole is a pod with resources as a whole, whose container has none of its own.
func whole(name, cpu, memory string) *v1.Pod {
	pod := appPod(v1.RestartPolicyAlways)
	pod.Name, pod.UID = name, types.UID("u-"+name)
	r := resources(cpu, memory)
	pod.Spec.Resources = &r
	return pod
}

func resizedWhole(pod *v1.Pod, cpu, memory string) *v1.Pod {
	pod = pod.DeepCopy()
	pod.Generation++
	r := resources(cpu, memory)
	pod.Spec.Resources = &r
	return pod
}

func restartFor(pod *v1.Pod, name v1.ResourceName) *v1.Pod {
	pod.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{
		{ResourceName: name, RestartPolicy: v1.RestartContainer}}
	return pod
}

// enforced returns the limits that the runtime enforces for a pod's container.
func (w *world) enforced(s v1.PodStatus) *runtimeapi.LinuxContainerResources {
	w.t.Helper()
	id := strings.TrimPrefix(s.ContainerStatuses[0].ContainerID, "fake://")
	c, err := w.runtime.ContainerStatus(context.Background(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return c.GetResources().GetLinux()
}

// hasWhole returns the actual and the allocated resources of a whole pod by its status.
func hasWhole(s v1.PodStatus) string {
	if s.Resources == nil {
		return "nothing"
	}
	return s.Resources.Limits.Cpu().String() + " " + s.Resources.Limits.Memory().String() + " of " +
		s.AllocatedResources.Cpu().String() + " " + s.AllocatedResources.Memory().String()
}

func TestContainersInheritTheLimitsOfTheirPod(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := whole("a", "2", "2Gi")
		w.manager.Update(pod)
		s := w.status(pod)
		if r := w.enforced(s); r.CpuQuota != 200000 || r.CpuShares != 2048 || r.MemoryLimitInBytes != 2<<30 {
			t.Errorf("without own limits: %+v", r)
		}
		if r := s.ContainerStatuses[0].Resources; len(r.Limits)+len(r.Requests) > 0 {
			t.Errorf("the status has the pod's as the container's own: %+v", r)
		}
		if hasWhole(s) != "2 2Gi of 2 2Gi" {
			t.Errorf("of the pod: %s", hasWhole(s))
		}
		own := whole("b", "2", "2Gi")
		own.Spec.Containers[0].Resources = v1.ResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m")},
			Limits:   v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}}
		w.manager.Update(own)
		if r := w.enforced(w.status(own)); r.CpuQuota != 200000 || r.CpuShares != 512 || r.MemoryLimitInBytes != 1<<30 {
			t.Errorf("with a request of CPU and a limit of memory: %+v", r)
		}
		sum := sized("c", "1", "1Gi")
		w.manager.Update(sum)
		if s := w.status(sum); hasWhole(s) != "1 1Gi of 1 1Gi" {
			t.Errorf("of a pod without resources as a whole: %s", hasWhole(s))
		}
	})
}

// A resize of the pod reaches the containers that inherit its limits.
func TestResizeOfThePod(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := whole("a", "1", "1Gi")
		w.manager.Update(pod)
		s := w.status(pod)
		id := s.ContainerStatuses[0].ContainerID
		if strings.Contains(w.events(), "Resize") {
			t.Errorf("events of a pod that is new: %s", w.events())
		}
		w.runtime.Fail(func(call, name string) error {
			if call == "UpdateContainerResources" {
				w.step(name)
			}
			return nil
		})
		for _, c := range []struct{ cpu, memory, want string }{{"2", "2Gi", "2 2Gi of 2 2Gi"},
			{"500m", "512Mi", "500m 512Mi of 500m 512Mi"}} {
			w.steps = nil
			pod.Status = s
			pod = resizedWhole(pod, c.cpu, c.memory)
			w.manager.Update(pod)
			s = w.status(pod)
			q := resource.MustParse(c.memory)
			if r := w.enforced(s); r.MemoryLimitInBytes != q.Value() ||
				r.CpuQuota != pod.Spec.Resources.Limits.Cpu().MilliValue()*100 {
				t.Errorf("the container has %+v", r)
			}
			if hasWhole(s) != c.want || s.ContainerStatuses[0].ContainerID != id ||
				len(s.ContainerStatuses[0].Resources.Limits) > 0 {
				t.Errorf("status: %s, want %s: %+v", hasWhole(s), c.want, s.ContainerStatuses)
			}
			if conditionOf(s, v1.PodResizeInProgress) != nil || conditionOf(s, v1.PodResizePending) != nil {
				t.Errorf("conditions stay: %+v", s.Conditions)
			}
			// The pod's group is widened before its containers, and has its limits after them.
			if !slices.Equal(w.steps, []string{"widen", "main", "group"}) {
				t.Errorf("steps: %q", w.steps)
			}
		}
		for _, want := range []string{
			"Normal ResizeStarted Pod resize started: {\"resources\":{\"limits\":{\"cpu\":\"2\"",
			"Normal ResizeCompleted", `"generation":3}`} {
			if !strings.Contains(w.events(), want) {
				t.Errorf("no event %q in %s", want, w.events())
			}
		}
	})
}

// An ephemeral container has the limits of its pod too. Under cgroup v1 the pod's could not be
// lower than its.
func TestResizeOfThePodReachesEphemeralContainers(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := whole("a", "1", "1Gi")
		w.manager.Update(pod)
		w.status(pod)
		pod = pod.DeepCopy()
		pod.Generation++
		pod.Spec.EphemeralContainers = []v1.EphemeralContainer{
			{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug", Image: "app:1",
				ImagePullPolicy: v1.PullIfNotPresent}}}
		w.manager.Update(pod)
		w.status(pod)
		pod = resizedWhole(pod, "500m", "512Mi")
		w.manager.Update(pod)
		s := w.status(pod)
		if r := w.enforced(v1.PodStatus{ContainerStatuses: s.EphemeralContainerStatuses}); r.CpuQuota != 50000 ||
			r.MemoryLimitInBytes != 512<<20 {
			t.Errorf("it has %+v", r)
		}
		if conditionOf(s, v1.PodResizeInProgress) != nil || hasWhole(s) != "500m 512Mi of 500m 512Mi" {
			t.Errorf("%s, %+v", hasWhole(s), s.Conditions)
		}
	})
}

// The resize policy of a container counts for inherited limits. Limits of its own shield it.
func TestResizeOfThePodByRestart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		heir, owner := restartFor(whole("heir", "1", "1Gi"), v1.ResourceMemory),
			restartFor(whole("owner", "1", "1Gi"), v1.ResourceMemory)
		owner.Spec.Containers[0].Resources = resources("100m", "100Mi")
		for _, c := range []struct {
			pod  *v1.Pod
			want int32
		}{{heir, 1}, {owner, 0}} {
			w.manager.Update(c.pod)
			w.status(c.pod)
			pod := resizedWhole(c.pod, "2", "1Gi")
			w.manager.Update(pod)
			if s := w.status(pod); s.ContainerStatuses[0].RestartCount != 0 || hasWhole(s) != "2 1Gi of 2 1Gi" {
				t.Errorf("%s, more CPU: %s, %+v", pod.Name, hasWhole(s), s.ContainerStatuses)
			}
			pod = resizedWhole(pod, "2", "512Mi")
			w.manager.Update(pod)
			s := w.status(pod)
			if s.ContainerStatuses[0].RestartCount != c.want || s.ContainerStatuses[0].State.Running == nil ||
				hasWhole(s) != "2 512Mi of 2 512Mi" {
				t.Errorf("%s, less memory: %s, %+v", pod.Name, hasWhole(s), s.ContainerStatuses)
			}
			if conditionOf(s, v1.PodResizeInProgress) != nil {
				t.Errorf("%s: it goes on: %+v", pod.Name, s.Conditions)
			}
		}
	})
}

// A container may want to be restarted for another request of memory, which nothing enforces.
func TestResizeOfARequestByRestart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for _, c := range []struct {
			pod  *v1.Pod
			want int32
		}{{restartFor(sized("a", "1", "1Gi"), v1.ResourceMemory), 1},
			{restartFor(sized("b", "1", "1Gi"), v1.ResourceCPU), 0}} {
			w.manager.Update(c.pod)
			w.status(c.pod)
			pod := resized(c.pod, "1", "1Gi")
			pod.Spec.Containers[0].Resources.Requests[v1.ResourceMemory] = resource.MustParse("512Mi")
			w.manager.Update(pod)
			s := w.status(pod)
			if s.ContainerStatuses[0].RestartCount != c.want ||
				s.ContainerStatuses[0].Resources.Requests.Memory().String() != "512Mi" {
				t.Errorf("%s: %+v", pod.Name, s.ContainerStatuses)
			}
			w.manager.Wake(pod.UID)
			if again := w.status(pod); again.ContainerStatuses[0].RestartCount != c.want ||
				conditionOf(again, v1.PodResizeInProgress) != nil {
				t.Errorf("%s, another look: %+v", pod.Name, again)
			}
		}
	})
}

func TestResizeOfThePodThatDoesNotFit(t *testing.T) {
	dir := newWorld(t).dir
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, runtime: fake.New(image), statuses: map[types.UID]v1.PodStatus{},
			finished: map[types.UID]bool{}, dir: dir,
			allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"),
				v1.ResourceMemory: resource.MustParse("8Gi")}}
		w.start()
		defer func() { w.stop() }()
		a, b := whole("a", "3", "1Gi"), whole("b", "1", "1Gi")
		for _, pod := range []*v1.Pod{a, b} {
			w.manager.Update(pod)
			pod.Status = w.status(pod)
			w.manager.Update(pod) // as the API server sends it
		}
		b = resizedWhole(b, "2", "1Gi")
		w.manager.Update(b)
		s := w.status(b)
		if c := conditionOf(s, v1.PodResizePending); c == nil || c.Reason != v1.PodReasonDeferred ||
			hasWhole(s) != "1 1Gi of 1 1Gi" || w.enforced(s).CpuQuota != 100000 {
			t.Errorf("a resize that must wait: %+v, %s", c, hasWhole(s))
		}
		a = resizedWhole(a, "2", "1Gi")
		w.manager.Update(a)
		if s = w.status(a); hasWhole(s) != "2 1Gi of 2 1Gi" {
			t.Errorf("a resize down: %s", hasWhole(s))
		}
		if s = w.status(b); conditionOf(s, v1.PodResizePending) != nil || hasWhole(s) != "2 1Gi of 2 1Gi" {
			t.Errorf("when there is room: %+v, %s", s.Conditions, hasWhole(s))
		}
		b = resizedWhole(b, "5", "1Gi")
		w.manager.Update(b)
		if c := conditionOf(w.status(b), v1.PodResizePending); c == nil || c.Reason != v1.PodReasonInfeasible {
			t.Errorf("more than the node has: %+v", c)
		}
	})
}

func TestResizeOfThePodBelowUsage(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := whole("a", "1", "1Gi")
		w.manager.Update(pod)
		pod.Status = w.status(pod)
		w.runtime.Uses("main", 900<<20)
		w.usage.Store(900 << 20)
		pod = resizedWhole(pod, "1", "10Ki")
		w.manager.Update(pod)
		s := w.status(pod)
		c := conditionOf(s, v1.PodResizeInProgress)
		if c == nil || c.Reason != v1.PodReasonError ||
			!strings.Contains(c.Message, "attempting to set pod memory limit (10240) below current usage (943718400)") {
			t.Fatalf("%+v", c)
		}
		if hasWhole(s) != "1 1Gi of 1 10Ki" || w.enforced(s).MemoryLimitInBytes != 1<<30 ||
			len(s.ContainerStatuses[0].Resources.Limits) > 0 {
			t.Errorf("it has %s, its container %+v and, it says, %+v", hasWhole(s), w.enforced(s),
				s.ContainerStatuses[0].Resources)
		}
		pod.Status = s
		pod = resizedWhole(pod, "1", "1Gi")
		w.manager.Update(pod)
		if s = w.status(pod); hasWhole(s) != "1 1Gi of 1 1Gi" || conditionOf(s, v1.PodResizeInProgress) != nil {
			t.Errorf("taken back: %s %+v", hasWhole(s), s.Conditions)
		}
		pod.Status = s
		pod = resizedWhole(pod, "1", "512Mi")
		w.manager.Update(pod)
		w.runtime.Uses("main", 100<<20)
		w.usage.Store(100 << 20)
		time.Sleep(time.Minute) // virtual
		if s = w.status(pod); hasWhole(s) != "1 512Mi of 1 512Mi" {
			t.Errorf("when less is used: %s %+v", hasWhole(s), s.Conditions)
		}
	})
}

// TestRestartBeforeAResizeIsTold: an earlier process allocated a smaller limit, and ended before
// the API had its status.
func TestRestartBeforeAResizeIsTold(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := whole("a", "1", "4Gi")
		pod.Spec.Containers[0].Resources = resources("1", "1Gi")
		w.manager.Update(pod)
		pod.Status = w.status(pod)
		w.usage.Store(3 << 30)
		pod = resizedWhole(pod, "1", "2Gi")
		w.manager.Update(pod)
		w.status(pod)
		w.stop()
		w.steps = nil
		w.start(pod)
		s := w.status(pod)
		c := conditionOf(s, v1.PodResizeInProgress)
		if c == nil || c.Reason != v1.PodReasonError || !strings.Contains(c.Message, "below current usage") ||
			slices.Contains(w.steps, "group") {
			t.Fatalf("while it uses more: %+v, steps %q", c, w.steps)
		}
		w.usage.Store(1 << 30)
		time.Sleep(time.Minute) // virtual
		if s = w.status(pod); conditionOf(s, v1.PodResizeInProgress) != nil || !slices.Contains(w.steps, "group") {
			t.Errorf("when it uses less: %+v, steps %q", s.Conditions, w.steps)
		}
		// A missing group is created, and has no process to be killed.
		pod.Status = s
		w.stop()
		w.usage.Store(-1)
		w.steps = nil
		w.start(pod)
		if s = w.status(pod); conditionOf(s, v1.PodResizeInProgress) != nil || !slices.Contains(w.steps, "group") {
			t.Errorf("without a group: %+v, steps %q", s.Conditions, w.steps)
		}
	})
}

// held returns the memory that others must leave to a pod, by its spec and its status.
func held(pod *v1.Pod, s v1.PodStatus) string {
	pod = pod.DeepCopy()
	pod.Status = s
	list := admission.Held(pod)
	return list.Memory().String()
}

// A pod keeps its containers' resources until a resize is carried out, also if it had none as a
// whole before.
func TestFirstResourcesAsAWholeBelowUsage(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := sized("a", "1", "4Gi")
		w.manager.Update(pod)
		w.status(pod)
		w.runtime.Uses("main", 3<<30)
		w.usage.Store(3 << 30)
		pod = resizedWhole(resized(pod, "1", "1Gi"), "1", "2Gi")
		w.manager.Update(pod)
		s := w.status(pod)
		if c := conditionOf(s, v1.PodResizeInProgress); c == nil || c.Reason != v1.PodReasonError {
			t.Fatalf("%+v", c)
		}
		if hasWhole(s) != "1 4Gi of 1 2Gi" || held(pod, s) != "4Gi" {
			t.Errorf("it fails: %s, %s held", hasWhole(s), held(pod, s))
		}
		w.runtime.Uses("main", 1<<20)
		w.usage.Store(1 << 20)
		time.Sleep(time.Minute) // virtual
		if s = w.status(pod); hasWhole(s) != "1 2Gi of 1 2Gi" || held(pod, s) != "2Gi" {
			t.Errorf("carried out: %s, %s held", hasWhole(s), held(pod, s))
		}
	})
}

// A pod that an earlier process was resizing, and whose status has no resources of the whole pod,
// has those of its containers.
func TestResizeThatAnEarlierVersionBegan(t *testing.T) {
	pod := sized("a", "1", "1Gi")
	has := resources("1", "4Gi")
	pod.Status.ContainerStatuses = []v1.ContainerStatus{
		{Name: "main", Resources: &has, AllocatedResources: resources("1", "1Gi").Requests}}
	c := lifecycle.Container{Name: "main", ID: "c", State: lifecycle.Running,
		Limits: &lifecycle.Limits{Shares: 1024, Quota: 100000, Memory: 4 << 30}}
	s := lifecycle.Status(lifecycle.StatusInput{
		Facts:  lifecycle.Facts{Pod: pod, Observed: lifecycle.Observed{Containers: []lifecycle.Container{c}}},
		Resize: lifecycle.ResizeState{InProgress: true},
	})
	if hasWhole(s) != "1 4Gi of 1 1Gi" || held(pod, s) != "4Gi" {
		t.Errorf("%s, %s held", hasWhole(s), held(pod, s))
	}
}

// A resource that a resize has raised stays the pod's until the next resize has lowered it.
func TestResizeDownAtOnceAfterOneUp(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := whole("a", "1", "1Gi")
		w.manager.Update(pod)
		pod.Status = w.status(pod)
		next := resizedWhole(pod, "1", "4Gi")
		w.runtime.Fail(func(call, name string) error {
			if call == "UpdateContainerResources" {
				w.runtime.Fail(nil)
				w.usage.Store(3 << 30)
				w.runtime.Uses("main", 3<<30)
				w.manager.Update(resizedWhole(next, "1", "2Gi")) // before the worker looks again
			}
			return nil
		})
		w.manager.Update(next)
		if s := w.status(pod); s.Resources.Requests.Memory().String() != "4Gi" ||
			w.enforced(s).MemoryLimitInBytes != 4<<30 {
			t.Errorf("%s, enforced %+v", hasWhole(s), w.enforced(s))
		}
	})
}

// The status has all that a pod holds: as a whole, and by its containers where it sets nothing as a
// whole. The overhead of its spec is counted beside that, and once.
func TestStatusOfResourcesAsAWhole(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := sized("a", "1", "3Gi")
		cpu := v1.ResourceList{v1.ResourceCPU: resource.MustParse("2")}
		pod.Spec.Resources = &v1.ResourceRequirements{Requests: cpu, Limits: cpu}
		pod.Spec.Overhead = v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}
		w.manager.Update(pod)
		s := w.status(pod)
		if hasWhole(s) != "2 3Gi of 2 3Gi" || held(pod, s) != "4Gi" {
			t.Errorf("%s, %s held", hasWhole(s), held(pod, s))
		}
		pod.Status = s
		for _, next := range []*v1.Pod{resized(pod, "1", "1Gi"), resizedWhole(pod, "1", "3Gi")} {
			w.manager.Update(next)
			pod.Status = w.status(next)
		}
		if s := pod.Status; hasWhole(s) != "1 3Gi of 1 3Gi" {
			t.Errorf("resized: %s", hasWhole(s))
		}
	})
}

// A resize that is infeasible does not count, also if it is the pod's first one.
func TestFirstWishThatIsInfeasible(t *testing.T) {
	dir := newWorld(t).dir
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, runtime: fake.New(image), statuses: map[types.UID]v1.PodStatus{},
			finished: map[types.UID]bool{}, dir: dir,
			allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"),
				v1.ResourceMemory: resource.MustParse("8Gi")}}
		w.start()
		defer func() { w.stop() }()
		pod := sized("a", "1", "1Gi")
		w.manager.Update(pod)
		pod.Status = w.status(pod)
		pod = resizedWhole(pod, "1", "40Gi")
		w.manager.Update(pod)
		s := w.status(pod)
		if c := conditionOf(s, v1.PodResizePending); c == nil || c.Reason != v1.PodReasonInfeasible ||
			held(pod, s) != "1Gi" {
			t.Errorf("%+v, %s held", c, held(pod, s))
		}
	})
}

// A pod that the node has not admitted has no allocation.
func TestRefusedPodHoldsNothing(t *testing.T) {
	dir := newWorld(t).dir
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, runtime: fake.New(image), statuses: map[types.UID]v1.PodStatus{},
			finished: map[types.UID]bool{}, dir: dir,
			allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"),
				v1.ResourceMemory: resource.MustParse("8Gi")}}
		w.start()
		defer func() { w.stop() }()
		pod := whole("a", "5", "1Gi")
		w.manager.Update(pod)
		if s := w.status(pod); s.Phase != v1.PodFailed || s.AllocatedResources != nil || s.Resources != nil {
			t.Errorf("%s: %v, %v", s.Phase, s.AllocatedResources, s.Resources)
		}
	})
}

package lifecycle

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestPhase(t *testing.T) {
	run := v1.ContainerStatus{State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}
	ended := func(code int32) v1.ContainerStatus {
		return v1.ContainerStatus{State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code}}}
	}
	waits := v1.ContainerStatus{State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{}}}
	loops := waits
	loops.LastTerminationState = ended(1).State
	for _, c := range []struct {
		policy v1.RestartPolicy
		a, b   v1.ContainerStatus
		ending bool
		want   v1.PodPhase
	}{
		{v1.RestartPolicyAlways, run, run, false, v1.PodRunning},
		{v1.RestartPolicyAlways, run, waits, false, v1.PodPending},
		{v1.RestartPolicyAlways, run, loops, false, v1.PodRunning},
		{v1.RestartPolicyAlways, ended(0), ended(1), false, v1.PodRunning},
		{v1.RestartPolicyOnFailure, ended(0), ended(1), false, v1.PodRunning},
		{v1.RestartPolicyOnFailure, ended(0), ended(0), false, v1.PodSucceeded},
		{v1.RestartPolicyNever, ended(0), ended(1), false, v1.PodFailed},
		{v1.RestartPolicyNever, ended(0), run, false, v1.PodRunning},
		{v1.RestartPolicyAlways, ended(0), ended(0), true, v1.PodSucceeded},
		{v1.RestartPolicyAlways, ended(0), ended(137), true, v1.PodFailed},
		{v1.RestartPolicyAlways, waits, waits, true, v1.PodFailed},
		{v1.RestartPolicyAlways, waits, waits, false, v1.PodPending},
	} {
		in := &StatusInput{Facts: Facts{Pod: podWith(c.policy, "a", "b")}, Ending: c.ending}
		if got := phase(in, nil, []v1.ContainerStatus{c.a, c.b}); got != c.want {
			t.Errorf("%s, %+v, %+v, ending %v: %s, want %s", c.policy, c.a.State, c.b.State, c.ending, got, c.want)
		}
	}
}

// TestMessagesOfOnePod: 12 KiB in all, the same share for each container.
func TestMessagesOfOnePod(t *testing.T) {
	pod := podWith(v1.RestartPolicyNever, "a", "b", "c")
	pod.Spec.InitContainers = []v1.Container{{Name: "i"}}
	in := StatusInput{Facts: Facts{Pod: pod}, Ending: true}
	for _, name := range []string{"i", "a", "b", "c"} {
		in.Observed.Containers = append(in.Observed.Containers, Container{ID: name + "1", Name: name, State: Exited,
			Attempt: 1, Message: strings.Repeat("x", 4096)},
			Container{ID: name + "0", Name: name, State: Exited, Message: strings.Repeat("y", 4096)})
	}
	s := Status(in)
	for _, c := range append(s.ContainerStatuses, s.InitContainerStatuses...) {
		if now, before := c.State.Terminated, c.LastTerminationState.Terminated; len(now.Message) != 3072 ||
			len(before.Message) != 3072 {
			t.Errorf("container %s: %d and %d bytes, want 3072 each", c.Name, len(now.Message), len(before.Message))
		}
	}
}

// TestResourcesInStatus: the status has the actual resources of a container, as they were written,
// and the allocated ones.
func TestResourcesInStatus(t *testing.T) {
	ask := func(cpu, memory string) v1.ResourceRequirements {
		list := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
		return v1.ResourceRequirements{Requests: list, Limits: list.DeepCopy()}
	}
	pod := podWith(v1.RestartPolicyAlways, "a")
	pod.Spec.Containers[0].Resources = ask("0.1", "64Mi")
	first := LimitsOf(pod, &pod.Spec.Containers[0])
	in := StatusInput{Facts: Facts{Pod: pod}, Runtime: "containerd"}
	in.Observed.Containers = []Container{{ID: "1", Name: "a", State: Running, Attempt: 1, Limits: &first}}
	pod.Status = Status(in)

	pod.Spec.Containers[0].Resources = ask("0.2", "128Mi")
	given := LimitsOf(pod, &pod.Spec.Containers[0])
	half := given
	half.Memory = first.Memory
	other := Limits{Shares: 307, Quota: 30000, Memory: 96 << 20}
	for _, c := range []struct {
		name   string
		limits *Limits
		want   string
	}{
		{"nothing has changed yet", &first, "100m 100m 64Mi 64Mi"},
		{"CPU has", &half, "200m 200m 64Mi 64Mi"},
		{"all has", &given, "200m 200m 128Mi 128Mi"},
		{"somebody else has set limits", &other, "300m 300m 96Mi 64Mi"},
		{"the runtime does not tell", nil, "100m 100m 64Mi 64Mi"},
	} {
		in.Observed.Containers[0].Limits = c.limits
		s := Status(in).ContainerStatuses[0]
		r := s.Resources
		if got := r.Requests.Cpu().String() + " " + r.Limits.Cpu().String() + " " + r.Limits.Memory().String() + " " +
			r.Requests.Memory().String(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if got := s.AllocatedResources.Cpu().String(); got != "200m" {
			t.Errorf("%s: %s is allocated", c.name, got)
		}
	}
}

// TestContainerThatNeverStarted: the kubelet ended between making a container and starting it, and
// has removed it since. It is made anew, also if it runs once: nothing was lost.
func TestContainerThatNeverStarted(t *testing.T) {
	for name, c := range map[string]struct {
		before v1.ContainerState
		ending bool
		lost   bool
	}{
		"made": {v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reasonCreating}}, false,
			false},
		"made, the pod ends": {v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reasonCreating}}, true,
			true},
		"ran": {v1.ContainerState{Running: &v1.ContainerStateRunning{}}, false, true},
	} {
		pod := podWith(v1.RestartPolicyNever, "a")
		pod.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "a", ContainerID: "containerd://x", State: c.before}}
		pod.Status = Status(StatusInput{Facts: Facts{Pod: pod}, Ending: c.ending})
		ended := pod.Status.ContainerStatuses[0].State.Terminated
		if (ended != nil) != c.lost || ended != nil && ended.Reason != "ContainerStatusUnknown" {
			t.Errorf("%s: %+v", name, pod.Status.ContainerStatuses[0].State)
		}
		if lost(pod, "a") != c.lost {
			t.Errorf("%s: the next look takes it for lost, or not: %+v", name, pod.Status.ContainerStatuses[0].State)
		}
	}
}
